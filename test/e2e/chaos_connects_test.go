package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"
)

// swallow ends all connections and has those to come neither made nor refused, as where a network
// drops what opens them: a listener whose queue is full answers nothing. It goes on until heal.
func (p *proxy) swallow() (heal func()) {
	p.t.Helper()
	p.Stop()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	err = errors.Join(
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
		syscall.Bind(fd, &syscall.SockaddrInet4{Port: p.port, Addr: [4]byte{127, 0, 0, 1}}),
		syscall.Listen(fd, 0),
	)
	if err != nil {
		p.t.Fatal(err)
	}
	var queued []net.Conn
	for len(queued) < 100 {
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", p.port), 100*time.Millisecond)
		if timed, is := errors.AsType[net.Error](err); is && timed.Timeout() {
			break
		}
		if err != nil {
			p.t.Fatal(err)
		}
		queued = append(queued, conn)
	}
	p.t.Logf("the queue is full with %d connections", len(queued))
	return func() {
		for _, conn := range queued {
			conn.Close()
		}
		if err := errors.Join(syscall.Close(fd), p.Start()); err != nil {
			p.t.Fatal(err)
		}
	}
}

// Connections are cut between each pair, and new ones are neither made nor refused: limits hold,
// the ladder is taken, no request gets anything but 200 and 429, and it is over soon after the
// network is whole.
func TestChaosConnectionsAreSwallowed(t *testing.T) {
	t.Parallel()
	w, ways, toRedis := startBehindProxies(t)
	var heal []func()
	whole := func() {
		for _, one := range heal {
			one()
		}
		heal = nil
	}
	w.endure(fault{name: "control plane and Redis", ladder: true,
		inflict: func() { heal = append(heal, toRedis.swallow()) },
		heal: func() {
			w.await("the control plane to tell of its store", func(ctx context.Context) error {
				return w.tellsOfStore(ctx, w.controlPlane)
			})
			whole()
		},
	}, either(1, 4))
	w.endure(fault{name: "Envoys and control plane", ladder: true,
		inflict: func() {
			for _, way := range ways {
				heal = append(heal, way.swallow())
			}
		},
		heal: whole,
	}, either(1, 4))
}
