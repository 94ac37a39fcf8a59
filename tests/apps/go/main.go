// A Go server and client in one: Go makes its system calls itself, so no preloaded library sees them. It must simply work.
package main

import (
	"bytes"
	"crypto/sha1"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	role, port := os.Args[1], os.Args[2]
	if role == "server" {
		http.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			check(err)
			w.Write(body)
		})
		check(http.ListenAndServe("127.0.0.1:"+port, nil))
	}
	if role == "raw" {
		// A raw echo of what another program (in C or Python, under Shunt) says.
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		check(err)
		for {
			connection, err := listener.Accept()
			check(err)
			go func() { io.Copy(connection, connection); connection.Close() }()
		}
	}
	for i := 0; i < 300; i++ {
		data := bytes.Repeat([]byte{byte(i)}, 1+i*100)
		answer, err := http.Post("http://127.0.0.1:"+port+"/echo", "text/plain", bytes.NewReader(data))
		check(err)
		back, err := io.ReadAll(answer.Body)
		check(err)
		answer.Body.Close()
		if !bytes.Equal(back, data) {
			check(fmt.Errorf("different at %d", i))
		}
		if i%100 == 99 {
			fmt.Printf("%d %x\n", i, sha1.Sum(back))
		}
	}
}
