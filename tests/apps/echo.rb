# Ruby: `ruby echo.rb server PORT` is a TCPServer with a thread for each connection; `ruby echo.rb client PORT` drives it by lines,
# by blocks, non-blocking, and half-closes.
require "socket"
require "digest"
port = Integer(ARGV[1])
if ARGV[0] == "server"
  server = TCPServer.new("127.0.0.1", port)
  loop do
    Thread.new(server.accept) do |socket|
      begin
        loop { socket.write(socket.readpartial(5000)) }
      rescue EOFError
        socket.close
      end
    end
  end
else
  socket = TCPSocket.new("127.0.0.1", port)
  500.times do |i|
    socket.puts "line #{i} #{"x" * (i % 70)}"
    raise "different" unless socket.gets == "line #{i} #{"x" * (i % 70)}\n"
  end
  data = Random.new(1).bytes(150_000)
  sender = Thread.new { 20.times { socket.write(data) } }
  20.times { raise "different" unless socket.read(data.size) == data }
  sender.join
  begin
    socket.read_nonblock(1)
    raise "something to read"
  rescue IO::WaitReadable
    puts "nothing to read"
  end
  puts IO.select([socket], [socket], nil, 1).map(&:size).inspect
  socket.close_write
  puts socket.read.inspect, Digest::SHA1.hexdigest(data)
end
