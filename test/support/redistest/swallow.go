package redistest

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Swallow makes connections to an address, where nothing listens, neither made nor refused, as in a
// network that drops the first packets of connections: a listener whose queue is full answers
// nothing. It goes on until end is called, or the test ends. The address is an IPv4 address with a
// port.
func Swallow(t testing.TB, addr string) (end func()) {
	t.Helper()
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var queued []net.Conn
	end = sync.OnceFunc(func() {
		for _, conn := range queued {
			conn.Close()
		}
		if err := syscall.Close(fd); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	err = errors.Join(
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
		syscall.Bind(fd, &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}),
		syscall.Listen(fd, 0),
	)
	if err != nil {
		t.Fatal(err)
	}
	for late := 0; late < 2; { // A single late connection may be late because the machine is busy.
		conn, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		switch timed, is := errors.AsType[net.Error](err); {
		case is && timed.Timeout():
			late++
		case err != nil || len(queued) == 100:
			t.Fatalf("the queue is not full with %d connections: %v", len(queued), err)
		default:
			late, queued = 0, append(queued, conn)
		}
	}
	return end
}
