package cli

import "testing"

func TestSpark(t *testing.T) {
	n := func(list ...float64) (values []*float64) {
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
		values  []*float64
		want    string
		highest float64
	}{
		{nil, "", 0},
		{n(-1, 0), " ·", 0},
		{n(-1, 0, 1, 2, 4, 8, 8), " ·▁▂▄██", 8},
		{n(1, 100, 1<<40), "▁▁█", 1 << 40},
		{n(0.001, 0.5, 1.5), "▁▃█", 1.5},
	} {
		if got, highest := drawSpark(c.values); got != c.want || highest != c.highest {
			t.Errorf("%q up to %v, want %q up to %v", got, highest, c.want, c.highest)
		}
	}
}
