# Perl's buffered sockets: print and readline, read, sysread beside them, autoflush, half-close, select.
use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;

my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $ARGV[0], Proto => "tcp") or die "connect: $!";
$s->autoflush(1);
for my $i (0 .. 499) {
    my $line = "line $i " . "x" x ($i % 70) . "\n";
    print $s $line;
    my $back = <$s>;
    die "different" unless $back eq $line;
}
my $data = join "", map { chr(97 + $_ * 7 % 26) } 0 .. 49999;
$s->autoflush(0);
for (1 .. 10) {
    print $s $data;
    $s->flush;
    my $back = "";
    while (length $back < length $data) {
        read($s, $back, length($data) - length $back, length $back) or die "end";
    }
    die "different" unless $back eq $data;
}
printf $s "%05d\n", $_ for 1 .. 100;
$s->flush;
for (1 .. 100) { die "different" unless <$s> eq sprintf "%05d\n", $_ }
for my $i (1 .. 100) {
    syswrite($s, "raw $i\n") or die "write: $!";
    die "not ready" unless IO::Select->new($s)->can_read(5);
    my $back = "";
    sysread($s, $back, 100 - length $back, length $back) or die "end" until $back =~ /\n/;
    die "different" unless $back eq "raw $i\n";
}
print $s "last";
$s->flush;
shutdown($s, 1);
local $/;
die "different" unless <$s> eq "last";
print "right\n";
