package envoytest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Level is the level of a log line.
type Level int

// Levels as the ABI numbers them.
const (
	Trace Level = iota
	Debug
	Info
	Warn
	Error
	Critical
)

var levelNames = [...]string{"trace", "debug", "info", "warn", "error", "critical"}

// String returns the level's name in lower case.
func (l Level) String() string {
	if l < Trace || l > Critical {
		return fmt.Sprintf("level(%d)", int(l))
	}
	return levelNames[l]
}

// LogLine is one line of the process's log.
type LogLine struct {
	At    time.Time // wall clock
	VM    int       // the VM it came from
	Level Level
	Text  string
}

// String formats the line for a test's output.
func (l LogLine) String() string { return fmt.Sprintf("[%d] %v: %s", l.VM, l.Level, l.Text) }

// maxLogLines bounds the log of a long run; the oldest lines go first.
const maxLogLines = 100_000

type logBook struct {
	mu       sync.Mutex
	lines    []LogLine
	problems []string
}

// Logs returns the log lines of guests and host, oldest first. Only the last 100,000 lines are
// kept.
func (h *Host) Logs() []LogLine {
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	return slices.Clone(h.log.lines)
}

// Problems returns the acts of the guest or the test that Envoy leaves undefined: a second local
// reply on one stream, the resumption of a stream that is not paused, an answer to a request that
// was not passed on. Close returns them too.
func (h *Host) Problems() []string {
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	return slices.Clone(h.log.problems)
}

func (h *Host) addLog(vm int, level Level, text string) {
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	if len(h.log.lines) >= maxLogLines {
		h.log.lines = append(h.log.lines[:0], h.log.lines[maxLogLines/2:]...)
	}
	h.log.lines = append(h.log.lines, LogLine{At: h.Now(), VM: vm, Level: level, Text: text})
}

func (h *Host) problem(format string, args ...any) {
	h.log.mu.Lock()
	h.log.problems = append(h.log.problems, fmt.Sprintf(format, args...))
	h.log.mu.Unlock()
	if h.opt.T != nil {
		h.opt.T.Errorf("envoytest: "+format, args...)
	}
}

// refusal returns the error of a plugin that Envoy would not take, with the log lines of the
// attempt.
func (h *Host) refusal(reason string, since int) error {
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "envoytest: Unable to create Wasm plugin %s: %s", h.opt.PluginName, reason)
	for _, l := range h.log.lines[min(since, len(h.log.lines)):] {
		fmt.Fprintf(&b, "\n  %v", l)
	}
	return fmt.Errorf("%s", b.String())
}

func (h *Host) logLength() int {
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	return len(h.log.lines)
}
