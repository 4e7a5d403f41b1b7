package cli

import "testing"

func TestSpark(t *testing.T) {
	n := func(list ...int64) (values []*int64) {
		for _, v := range list {
			if v < 0 {
				values = append(values, nil)
			} else {
				values = append(values, &v)
			}
		}
		return values
	}
	for _, c := range []struct {
		values  []*int64
		want    string
		highest int64
	}{
		{nil, "", 0},
		{n(-1, 0), " ·", 0},
		{n(-1, 0, 1, 2, 4, 8, 8), " ·▁▂▄██", 8},
		{n(1, 100, 1<<40), "▁▁█", 1 << 40},
	} {
		if got, highest := spark(c.values); got != c.want || highest != c.highest {
			t.Errorf("%q up to %d, want %q up to %d", got, highest, c.want, c.highest)
		}
	}
}
