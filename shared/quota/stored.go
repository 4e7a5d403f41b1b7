package quota

// Sound reports whether p can have been made by NewParams, for figures that were stored.
func (p Params) Sound() bool {
	return p.Num >= 1 && p.Den >= 1 && p.Burst >= 1 && p.Num <= MaxUnits && p.Burst <= MaxUnits/p.Den
}

// Sound reports whether w can have been made by NewWindows and At, for figures that were stored.
func (w Windows) Sound() bool {
	return w.Algorithm.Windowed() && w.Quota >= 1 && w.Quota <= MaxUnits &&
		w.Length >= Second && w.Length <= MaxWindow &&
		w.Offset >= 0 && w.Offset < w.Grain && w.Grain <= w.Length
}

// MostCounted bounds the count of a mark. It may be above the quota: requests may have cost more
// than they had reserved, and a count from a larger quota fades.
func (w Windows) MostCounted() int64 {
	if w.Algorithm == SlidingWindowCounter {
		return MaxUnits / int64(w.Length/Millisecond)
	}
	return MaxUnits
}
