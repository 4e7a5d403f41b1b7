package envoytest

import (
	"strings"
	"testing"
)

func TestLogIsBounded(t *testing.T) {
	h := guest.New(Options{T: t})
	for range maxLogLines + 10 {
		h.addLog(0, Info, "line")
	}
	h.addLog(0, Info, "last")
	lines := h.Logs()
	if len(lines) > maxLogLines || lines[len(lines)-1].Text != "last" {
		t.Errorf("%d lines, the last is %v", len(lines), lines[len(lines)-1])
	}
}

func TestNamesForTests(t *testing.T) {
	for got, want := range map[string]string{
		Warn.String(): "warn", Level(9).String(): "level(9)", Paused.String(): "Paused",
		State(-1).String(): "State(-1)",
		(LogLine{VM: Main, Level: Error, Text: "x"}).String(): "[-1] error: x",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestUnknownVM(t *testing.T) {
	h := start(t, Options{T: quiet{}})
	if h.MemoryBytes(7) != 0 || h.Alive(-9) || len(h.Problems()) != 2 || !strings.Contains(h.Problems()[0], "no VM 7") {
		t.Errorf("problems: %q", h.Problems())
	}
	if h.MemoryBytes(0) == 0 || h.MemoryBytes(Main) == 0 || h.Workers() != 1 {
		t.Error("the VMs that are there have memory")
	}
}
