// Java's three ways to use sockets, server and client: `java Echo MODE server PORT`, `java Echo MODE client PORT`, MODE one of
// blocking (java.net.Socket, a thread for each connection), nio (a selector), channels (blocking SocketChannel with direct buffers).
// The client sends patterns, checks that they come back, prints a digest, and half-closes to end.
import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.security.MessageDigest;
import java.util.*;

public class Echo {
    public static void main(String[] args) throws Exception {
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(args[2]));
        boolean server = args[1].equals("server");
        switch (args[0]) {
            case "blocking": if (server) serveBlocking(address); else ask(address); break;
            case "nio": if (server) serveSelector(address); else askSelector(address); break;
            case "channels": if (server) serveChannels(address); else askChannels(address); break;
            default: throw new IllegalArgumentException(args[0]);
        }
    }

    static byte[] pattern(int seed, int size) {
        byte[] data = new byte[size];
        new Random(seed).nextBytes(data);
        return data;
    }

    static final int[] SIZES = new int[1003];
    static {
        for (int i = 0; i < 1000; i++) SIZES[i] = 1 + i * 37 % 3000;
        SIZES[1000] = 70000;
        SIZES[1001] = 100000;
        SIZES[1002] = 150000;
    }

    static void serveBlocking(InetSocketAddress address) throws Exception {
        ServerSocket listener = new ServerSocket();
        listener.bind(address);
        while (true) {
            Socket socket = listener.accept();
            new Thread(() -> {
                try (socket) {
                    byte[] data = new byte[5000];
                    InputStream in = socket.getInputStream();
                    OutputStream out = socket.getOutputStream();
                    for (int n; (n = in.read(data)) > 0; ) out.write(data, 0, n);
                } catch (IOException e) {
                    e.printStackTrace();
                }
            }).start();
        }
    }

    static void ask(InetSocketAddress address) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-1");
        Socket socket = new Socket();
        socket.connect(address, 10000);
        socket.setTcpNoDelay(true);
        socket.setSoTimeout(20000);
        DataInputStream in = new DataInputStream(socket.getInputStream());
        for (int i = 0; i < SIZES.length; i++) {
            byte[] out = pattern(i, SIZES[i]), back = new byte[SIZES[i]];
            socket.getOutputStream().write(out);
            in.readFully(back);
            if (!Arrays.equals(out, back)) throw new IOException("different");
            digest.update(back);
        }
        socket.setSoTimeout(100);
        try {
            in.read();
            throw new IOException("no timeout");
        } catch (SocketTimeoutException expected) {
            System.out.println("timed out as it should");
        }
        socket.setSoTimeout(20000);
        socket.shutdownOutput();
        System.out.println("end " + in.read() + " " + new java.math.BigInteger(1, digest.digest()).toString(16));
        socket.close();
    }

    static void serveSelector(InetSocketAddress address) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(address);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> i = selector.selectedKeys().iterator(); i.hasNext(); ) {
                SelectionKey key = i.next();
                i.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(4096));
                    continue;
                }
                SocketChannel channel = (SocketChannel) key.channel();
                ByteBuffer buffer = (ByteBuffer) key.attachment();
                if (key.isReadable() && channel.read(buffer) < 0 && buffer.position() == 0) {
                    channel.close();
                    continue;
                }
                buffer.flip();
                channel.write(buffer);
                buffer.compact();
                int interest = buffer.hasRemaining() ? SelectionKey.OP_READ : 0;
                if (buffer.position() > 0) interest |= SelectionKey.OP_WRITE;
                key.interestOps(interest);
            }
        }
    }

    // Again and again, because all of it takes a fifth of a second: on busy processors that may be over before the ends have found each other.
    static void askSelector(InetSocketAddress address) throws Exception {
        for (int round = 0; round < 4; round++) askByOneSelector(address);
    }

    // Twenty connections in one selector; each sends its pattern and reads it back.
    static void askByOneSelector(InetSocketAddress address) throws Exception {
        Selector selector = Selector.open();
        int many = 20, size = 2000000, open = many;
        ByteBuffer[] out = new ByteBuffer[many], in = new ByteBuffer[many];
        for (int i = 0; i < many; i++) {
            out[i] = ByteBuffer.wrap(pattern(i, size));
            in[i] = ByteBuffer.allocate(size + 1);
            SocketChannel channel = SocketChannel.open();
            channel.configureBlocking(false);
            int interest = channel.connect(address) ? SelectionKey.OP_READ | SelectionKey.OP_WRITE : SelectionKey.OP_CONNECT;
            channel.register(selector, interest, i);
        }
        while (open > 0) {
            if (selector.select(20000) == 0) throw new IOException("nothing is ready for 20 s");
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next();
                keys.remove();
                int i = (Integer) key.attachment();
                SocketChannel channel = (SocketChannel) key.channel();
                if (key.isConnectable()) {
                    channel.finishConnect();
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    continue;
                }
                if (key.isWritable()) {
                    out[i].limit(Math.min(size, out[i].position() + 1 + (out[i].position() * 31) % 9000));
                    channel.write(out[i]);
                    if (out[i].position() == size) {
                        channel.shutdownOutput();
                        key.interestOps(SelectionKey.OP_READ);
                    }
                }
                if (key.isReadable() && channel.read(in[i]) < 0) {
                    if (in[i].position() != size || !Arrays.equals(Arrays.copyOf(in[i].array(), size), out[i].array()))
                        throw new IOException("connection " + i + " is different at the end");
                    channel.close();
                    open--;
                }
            }
        }
        System.out.println("all " + many + " the same");
    }

    static void serveChannels(InetSocketAddress address) throws Exception {
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(address);
        while (true) {
            SocketChannel channel = listener.accept();
            new Thread(() -> {
                try (channel) {
                    ByteBuffer buffer = ByteBuffer.allocateDirect(8192);
                    while (channel.read(buffer) >= 0) {
                        buffer.flip();
                        while (buffer.hasRemaining()) channel.write(buffer);
                        buffer.clear();
                    }
                } catch (IOException e) {
                    e.printStackTrace();
                }
            }).start();
        }
    }

    static void askChannels(InetSocketAddress address) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-1");
        SocketChannel channel = SocketChannel.open(address);
        for (int i = 0; i < SIZES.length; i++) {
            ByteBuffer[] parts = {ByteBuffer.wrap(pattern(i, SIZES[i])), ByteBuffer.wrap(pattern(-i, 10))};
            while (parts[1].hasRemaining()) channel.write(parts);
            ByteBuffer back = ByteBuffer.allocateDirect(SIZES[i] + 10);
            while (back.hasRemaining()) if (channel.read(back) < 0) throw new EOFException();
            back.flip();
            if (!back.slice(0, SIZES[i]).equals(ByteBuffer.wrap(pattern(i, SIZES[i])))) throw new IOException("different");
            digest.update(back);
        }
        // A thread that is interrupted in read() closes the channel; that must end the read.
        Thread reader = new Thread(() -> {
            try {
                channel.read(ByteBuffer.allocate(10));
                System.out.println("read returned");
            } catch (ClosedByInterruptException e) {
                System.out.println("closed by interrupt");
            } catch (IOException e) {
                System.out.println(e);
            }
        });
        reader.start();
        while (reader.getState() != Thread.State.RUNNABLE) Thread.onSpinWait();
        Thread.sleep(100);
        reader.interrupt();
        reader.join();
        System.out.println(new java.math.BigInteger(1, digest.digest()).toString(16));
    }
}
