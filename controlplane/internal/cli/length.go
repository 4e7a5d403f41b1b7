package cli

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// length is a length of time as the command line takes it: 90s, 30m, 12h, 7d, 1d12h. Zero means
// that none was given.
type length time.Duration

// maxDays keeps a length far below the longest time.Duration.
const maxDays = 3650

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *length) UnmarshalText(text []byte) error {
	d, err := parseLength(string(text))
	if err == nil && d <= 0 {
		err = errors.New("must be longer than 0")
	}
	*l = length(d)
	return err
}

// parseLength reads days and the units of time.ParseDuration, as in 7d, 12h or 1d12h.
func parseLength(text string) (time.Duration, error) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		days, rest = "0", text
	}
	wrong := fmt.Errorf("%q is not like 30m, 12h or 7d", text)
	count, err := strconv.Atoi(days)
	if err != nil || found && strings.ContainsAny(rest, "+-") {
		return 0, wrong
	}
	var d time.Duration
	if rest != "" {
		d, err = time.ParseDuration(rest)
		if err != nil {
			return 0, wrong
		}
	} else if !found {
		return 0, wrong
	}
	if count > maxDays || d > maxDays*24*time.Hour {
		return 0, fmt.Errorf("%q is longer than %dd", text, maxDays)
	}
	return time.Duration(max(count, -1))*24*time.Hour + d, nil
}

// moment is a point in time as the command line takes it.
type moment struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *moment) UnmarshalText(text []byte) (err error) {
	m.Time, err = parseMoment(string(text))
	return err
}

func parseMoment(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%q is not like 2030-01-01T00:00:00Z", text)
	}
	return at, nil
}

// endFlags say when something ends by itself.
type endFlags struct {
	For   length `xor:"end" help:"How long, like 30m, 12h or 7d; without an end it is so until it is taken back." placeholder:"DURATION"`
	Until moment `xor:"end" help:"Until when, like 2030-01-01T00:00:00Z." placeholder:"TIME"`
}

// endTime returns the time at which something ends by the control plane's clock, nil for never.
func (cl *client) endTime(f endFlags) (*time.Time, error) {
	switch {
	case !f.Until.IsZero():
		return &f.Until.Time, nil
	case f.For == 0:
		return nil, nil
	}
	now, err := cl.serverTime()
	if err != nil {
		return nil, err
	}
	until := now.Add(time.Duration(f.For)).UTC()
	return &until, nil
}

// serverTime returns the time by the control plane's clock.
func (cl *client) serverTime() (time.Time, error) {
	got, err := cl.do(http.MethodGet, "/healthz", nil, nil)
	if err != nil {
		return time.Time{}, err
	}
	now, err := http.ParseTime(got.header.Get("Date"))
	if err != nil {
		return now, fmt.Errorf("the control plane's answer has no time: use --until: %w", err)
	}
	return now, nil
}

// pastTime reads --since: a time, or how long ago it was by the control plane's clock.
func (f serverFlags) pastTime(text string) (time.Time, error) {
	ago, err := parseLength(text)
	if err != nil || ago < 0 {
		at, err := parseMoment(text)
		if err != nil {
			return at, fmt.Errorf("--since: %q is neither like 30m, 12h or 7d nor like 2030-01-01T00:00:00Z", text)
		}
		return at, nil
	}
	cl, err := f.newClient()
	if err != nil {
		return time.Time{}, err
	}
	now, err := cl.serverTime()
	return now.Add(-ago), err
}
