package dialect

// MaxField bounds the value of a field, in bytes: proxies in front cut larger heads of answers, or
// refuse them.
const MaxField = 2048

// Fit returns how many of the first items fit into the fields RateLimit and RateLimit-Policy. If
// not all fit, Fit moves to the front the item at index first, unless that is negative, and then
// the items nearest to exhaustion.
func Fit(items []Item, first int) (fit int) {
	size := 0
	for i := range items {
		size += items[i].maxSize()
	}
	if size <= MaxField {
		return len(items)
	}
	for size = 0; fit < len(items); fit++ {
		next := first
		if fit > 0 || first < 0 {
			next = fit + Nearest(items[fit:])
		}
		if size += items[next].maxSize(); size > MaxField {
			break
		}
		items[fit], items[next] = items[next], items[fit]
	}
	return fit
}

// maxSize returns the largest number of bytes of an item in one of the fields, or in Envoy's older
// form.
func (it *Item) maxSize() int {
	around := len(`, ;w=;name=""`)
	if it.InFlight {
		around = len(`"",;q=;qu="concurrent-requests"`)
	}
	span := max(Seconds(it.Window), Seconds(it.Reset), 1)
	return around + len(it.Name) + digitsOf(max(it.Burst, it.Remaining)) + digitsOf(span)
}

func digitsOf(n int64) (count int) {
	for count = 1; n >= 10; count++ {
		n /= 10
	}
	return count
}
