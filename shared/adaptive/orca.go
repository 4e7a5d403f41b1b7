package adaptive

import "github.com/weir-proxy/weir/shared/text"

// Utilisation reads the used part of an upstream's capacity from a header `endpoint-load-metrics`,
// as text or as JSON: application_utilization or, if it is missing or 0, cpu_utilization. It
// reports false if the header has neither.
//
//go:noinline
func Utilisation(header []byte) (used float64, ok bool) {
	if !text.HasPrefix(header, "TEXT ") && !text.HasPrefix(header, "JSON ") {
		return 0, false
	}
	if used, ok = figureOf(header, "application_utilization"); used > 0 {
		return used, true
	}
	if cpu, is := figureOf(header, "cpu_utilization"); is {
		return cpu, true
	}
	return used, ok
}

// figureOf finds a name, in quotes or not, and reads the number behind it.
func figureOf(header []byte, name string) (float64, bool) {
	for at := len("TEXT "); at+len(name) < len(header); at++ {
		if !text.HasPrefix(header[at:], name) || !isBreak(header[at-1]) {
			continue
		}
		at += len(name)
		for at < len(header) && (isBreak(header[at]) || header[at] == ':' || header[at] == '=') {
			at++
		}
		return readFraction(header[at:])
	}
	return 0, false
}

func isBreak(c byte) bool { return c == ' ' || c == ',' || c == '"' || c == '{' }

// readFraction reads a number like 0.75. A number with an exponent counts as 0: no other
// utilisation is written with an exponent.
//
//go:noinline
func readFraction(b []byte) (n float64, ok bool) {
	scale, point := 1.0, false
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			n = n*10 + float64(c-'0')
			if ok = true; point {
				scale *= 10
			}
		case c == '.':
			point = true
		case c|0x20 == 'e':
			return 0, ok
		default:
			return n / scale, ok
		}
	}
	return n / scale, ok
}
