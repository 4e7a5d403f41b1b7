package localstore

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/quota"
)

// maxReserved bounds the open reservations of a shard. The tokens of a further reservation are
// never given back.
const maxReserved = 16384

// reservationName names the reservation of an ask's nth request.
type reservationName struct {
	name uint64
	nth  int64
}

// open is a reservation that was not settled yet, with the time until which it can be settled.
type open struct {
	taken quota.Reservation
	until quota.Instant
}

// reservations holds the open reservations of a shard's buckets. The shard's lock guards it. They
// are saved in the same transaction as the buckets, so the file has both from the same moment.
type reservations struct {
	all map[hash]map[reservationName]open
	// count is the number of reservations in all.
	count int
	// dirty has the buckets whose reservations differ from the file.
	dirty map[hash]struct{}
}

func (r *reservations) init() {
	*r = reservations{all: map[hash]map[reservationName]open{}, dirty: map[hash]struct{}{}}
}

func (r *reservations) fileSuffix() byte { return reservationsKey }

func (r *reservations) markDirty(key hash) { r.dirty[key] = struct{}{} }

// add adds a reservation.
func (r *reservations) add(key hash, name reservationName, one open) {
	of := r.all[key]
	if of == nil {
		of = map[reservationName]open{}
		r.all[key] = of
	}
	if _, known := of[name]; !known {
		r.count++
	}
	of[name] = one
	r.markDirty(key)
}

// takeOut removes a reservation, and reports whether it was there.
func (r *reservations) takeOut(key hash, name reservationName) (one open, known bool) {
	of := r.all[key]
	if one, known = of[name]; known {
		r.drop(key, of, name)
	}
	return one, known
}

func (r *reservations) drop(key hash, of map[reservationName]open, name reservationName) {
	delete(of, name)
	r.count--
	if len(of) == 0 {
		delete(r.all, key)
	}
	r.markDirty(key)
}

// load takes in the saved reservations of a bucket: the format, and then for each reservation its
// name, nth, from, at, tokens and until, eight bytes each.
func (r *reservations) load(key hash, value []byte, _ quota.Instant) bool {
	if len(value) == 0 || value[0] != ledgerFormat || (len(value)-1)%reservationSize != 0 {
		return false
	}
	for b := value[1:]; len(b) > 0; b = b[reservationSize:] {
		var v [reservationSize / 8]uint64
		for i := range v {
			v[i] = binary.BigEndian.Uint64(b[8*i:])
			if i > 0 && v[i] > 2*quota.MaxUnits {
				return false
			}
		}
		r.add(key, reservationName{v[0], int64(v[1])}, open{
			taken: quota.Reservation{From: quota.Instant(v[2]), At: quota.Instant(v[3]), Tokens: int64(v[4])},
			until: quota.Instant(v[5]),
		})
	}
	delete(r.dirty, key)
	return true
}

// reservationSize is the size of a reservation in the file, in bytes.
const reservationSize = 6 * 8

func encodeReservations(of map[reservationName]open) []byte {
	b := append(make([]byte, 0, 1+reservationSize*len(of)), ledgerFormat)
	for name, one := range of {
		for _, v := range [...]int64{
			int64(name.name), name.nth, int64(one.taken.From), int64(one.taken.At), one.taken.Tokens, int64(one.until),
		} {
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		}
	}
	return b
}

func (r *reservations) changes(now quota.Instant, sweep bool, out []change) []change {
	if sweep {
		for key, of := range r.all {
			for name, one := range of {
				if one.until <= now {
					r.drop(key, of, name)
				}
			}
		}
	}
	for key := range r.dirty {
		c := change{key: append(key[:len(key):len(key)], reservationsKey)}
		if of := r.all[key]; len(of) > 0 {
			c.value = encodeReservations(of)
		}
		out = append(out, c)
	}
	clear(r.dirty)
	return out
}
