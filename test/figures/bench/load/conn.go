package load

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"
)

// conn is one connection. It reads only the necessary parts of an answer.
type conn struct {
	net.Conn
	in        *bufio.Reader
	statuses  map[int]int
	latencies []time.Duration
	// due is when the request on its way was due, in nanoseconds of Unix time.
	due atomic.Int64
}

func newConn(c net.Conn) *conn {
	return &conn{Conn: c, in: bufio.NewReader(c), statuses: map[int]int{}}
}

var contentLength = []byte("content-length:")

// receive reads one answer and counts its status.
func (c *conn) receive() error {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	// HTTP/1.1 200 OK
	if len(line) < 12 {
		return fmt.Errorf("not an answer of HTTP: %q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return fmt.Errorf("not an answer of HTTP: %q", line)
	}
	length := -1
	for {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return fmt.Errorf("an answer breaks off: %w", err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			break
		}
		if len(line) > len(contentLength) && bytes.EqualFold(line[:len(contentLength)], contentLength) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):]))); err != nil {
				return fmt.Errorf("an answer of unreadable length: %w", err)
			}
		}
	}
	if length < 0 {
		return fmt.Errorf("an answer of status %d without content-length, which is not understood here", status)
	}
	if _, err := c.in.Discard(length); err != nil {
		return fmt.Errorf("an answer breaks off: %w", err)
	}
	c.statuses[status]++
	return nil
}
