# Ruby's buffered sockets: puts and gets, read, ungetc, each_line, printf, getc, sync off, read_nonblock beside them.
require "socket"
socket = TCPSocket.new("127.0.0.1", Integer(ARGV[0]))
socket.sync = false
500.times do |i|
  socket.printf("line %d %s\n", i, "x" * (i % 70))
  socket.flush
  first = socket.getc
  socket.ungetc(first)
  raise "different" unless socket.gets == "line #{i} #{"x" * (i % 70)}\n"
end
data = (0...50_000).map { |i| (i * 7 % 251).chr }.join.b
10.times do
  socket.write(data)
  socket.flush
  raise "different" unless socket.read(data.size) == data
end
100.times { |i| socket.puts(i) }
socket.flush
100.times { |i| raise "different" unless socket.readline == "#{i}\n" }
100.times do |i|
  socket.syswrite("raw #{i}")
  have = +""
  until have == "raw #{i}"
    have << begin
      socket.read_nonblock(100)
    rescue IO::WaitReadable
      IO.select([socket])
      ""
    end
  end
end
socket.write("last\nlines")
socket.flush
socket.close_write
raise "different" unless socket.each_line.to_a == ["last\n", "lines"]
puts "right"
