# Tcl's channels: line, full and no buffering, gets and read, fileevent, half-close.
set s [socket 127.0.0.1 [lindex $argv 0]]
fconfigure $s -translation lf -buffering line
for {set i 0} {$i < 500} {incr i} {
    set line "line $i [string repeat x [expr {$i % 70}]]"
    puts $s $line
    if {[gets $s] ne $line} { error different }
}
fconfigure $s -translation binary -buffering full -buffersize 3000
set data [string repeat abcdefg 7000]
for {set i 0} {$i < 10} {incr i} {
    puts -nonewline $s $data
    flush $s
    if {[read $s [string length $data]] ne $data} { error different }
}
fconfigure $s -buffering none -blocking 0
set count 0
proc ready {} {
    global s count done
    append ::have [read $s]
    if {$::have eq "event $count"} {
        set ::have ""
        if {[incr count] == 200} { set done 1 } else { puts -nonewline $s "event $count" }
    }
}
set have ""
fileevent $s readable ready
puts -nonewline $s "event 0"
vwait done
fileevent $s readable {}
fconfigure $s -blocking 1
puts -nonewline $s last
close $s write
if {[read $s] ne "last"} { error different }
puts right
