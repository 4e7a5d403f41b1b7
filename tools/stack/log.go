package stack

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
)

// keptBytes is how much of a stream's end a Log keeps.
const keptBytes = 512 << 10

// Log is the output of a process: it keeps the end of the output and passes whole lines on,
// prefixed with the process's name. Safe for several goroutines.
type Log struct {
	prefix string
	echo   io.Writer // may be nil

	mu      sync.Mutex
	kept    []byte
	partial []byte
}

// NewLog returns a Log whose lines are passed on to echo, which may be nil.
func NewLog(name string, echo io.Writer) *Log {
	return &Log{prefix: name, echo: echo}
}

// Write takes any piece of output. It never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, p...)
	if len(l.kept) > 2*keptBytes {
		l.kept = append(l.kept[:0], l.kept[len(l.kept)-keptBytes:]...)
	}
	if l.echo == nil {
		return len(p), nil
	}
	l.partial = append(l.partial, p...)
	for {
		end := bytes.IndexByte(l.partial, '\n')
		if end < 0 {
			return len(p), nil
		}
		fmt.Fprintf(l.echo, "%-8s | %s\n", l.prefix, l.partial[:end])
		l.partial = l.partial[end+1:]
	}
}

// String returns the end of the output.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.kept)
}

// Tail returns the last n lines.
func (l *Log) Tail(n int) string {
	lines := strings.Split(strings.TrimRight(l.String(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
