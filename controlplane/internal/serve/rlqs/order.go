package rlqs

import "container/heap"

// order is a heap of buckets; the bucket that is due first is at the top.
type order []*bucket

// Len implements heap.Interface.
func (o order) Len() int { return len(o) }

// Less implements heap.Interface.
func (o order) Less(i, j int) bool { return o[i].due < o[j].due }

// Swap implements heap.Interface.
func (o order) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].at, o[j].at = i, j
}

// Push implements heap.Interface.
func (o *order) Push(x any) {
	b := x.(*bucket)
	b.at = len(*o)
	*o = append(*o, b)
}

// Pop implements heap.Interface.
func (o *order) Pop() any {
	last := len(*o) - 1
	b := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	b.at = -1
	return b
}

// put adds a bucket, or moves it to its place.
func (o *order) put(b *bucket) {
	if b.at < 0 {
		heap.Push(o, b)
		return
	}
	heap.Fix(o, b.at)
}

// remove takes a bucket out.
func (o *order) remove(b *bucket) {
	if b.at >= 0 {
		heap.Remove(o, b.at)
	}
}
