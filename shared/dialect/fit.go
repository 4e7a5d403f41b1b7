package dialect

// MaxField bounds the value of a field, in bytes: proxies in front cut larger heads of answers, or
// refuse them.
const MaxField = 2048

// Fit returns how many of the items, the first ones, the fields RateLimit and RateLimit-Policy have
// room for. If that is not all, Fit puts those first that are nearest to exhaustion, and before
// them the item at an index, if it is not negative.
func Fit(items []Item, first int) (fit int) {
	size := 0
	for i := range items {
		size += items[i].size()
	}
	if size <= MaxField {
		return len(items)
	}
	for size = 0; fit < len(items); fit++ {
		next := first
		if fit > 0 || first < 0 {
			next = fit + Nearest(items[fit:])
		}
		if size += items[next].size(); size > MaxField {
			break
		}
		items[fit], items[next] = items[next], items[fit]
	}
	return fit
}

// size is the most bytes that an item takes in one of the fields, or in Envoy's older form.
func (it *Item) size() int {
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
