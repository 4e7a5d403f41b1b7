package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
)

// upstream is the service behind the proxy. It only finds the end of each request, because it
// shares its processor with the load; net/http would cost more than the contestants.
type upstream struct {
	listener net.Listener
}

const upstreamAnswer = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"

func startUpstream() (*upstream, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the service cannot listen: %w", err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go answer(c)
			}
		}
	}()
	return &upstream{l}, nil
}

// answer serves one connection until it ends.
func answer(c net.Conn) {
	defer c.Close()
	for in := bufio.NewReader(c); ; {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if len(line) > len("\r\n") {
			continue
		}
		if _, err := c.Write([]byte(upstreamAnswer)); err != nil {
			return
		}
	}
}

func (u *upstream) port() int { return u.listener.Addr().(*net.TCPAddr).Port }

func (u *upstream) stop() { u.listener.Close() }
