package fleet

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// QueuedStripe is a stripe on the repair queue with its condition.
type QueuedStripe struct {
	Stripe *moraine.Stripe
	// Missing and Moving are bit masks of chunks: missing or bad ones, and ones on draining
	// devices.
	Missing, Moving uint32
	// Lost says that too few chunks are left, Gone that a chunk is missing because its device is.
	// Protects is the number of further hosts that may fail.
	Lost, Gone bool
	Protects   int
	Running    bool // a job works on it
}

// QueuedStripes returns at most limit stripes of the repair queue by number, with or without a job;
// more says whether there are others. It omits stripes that are only moved to balance devices.
func QueuedStripes(v *kvtx.View, limit int) (out []QueuedStripe, more bool, err error) {
	var items []*record.RepairItem
	err = v.EachIn(v.K.Table(record.TabRepairStripe), func(key, value []byte) (bool, error) {
		i := &record.RepairItem{Stripe: moraine.StripeID(record.LastU64(key))}
		if err := i.Decode(value); err != nil {
			return false, err
		}
		if i.Balance {
			return true, nil
		}
		if more = len(items) == limit; !more {
			items = append(items, i)
		}
		return !more, nil
	})
	for _, i := range items {
		if err != nil {
			return nil, false, err
		}
		var q QueuedStripe
		if q, err = queued(v, i); err == nil {
			out = append(out, q)
		}
	}
	return out, more, err
}

func queued(v *kvtx.View, i *record.RepairItem) (QueuedStripe, error) {
	s, err := Stripe(v, i.Stripe)
	if err == nil && s == nil {
		err = kvtx.Corrupt("repair queue", i.Stripe.String(), "the queue has the stripe, which has no record")
	}
	if err != nil {
		return QueuedStripe{}, err
	}
	h, err := HealthOf(v, s, i.Bad)
	return QueuedStripe{Stripe: s, Missing: h.missing, Moving: h.moving, Lost: h.lost, Gone: h.gone, Protects: h.Protects, Running: i.Job != 0}, err
}

// BadStripe is a stripe with chunks known to be corrupt or missing; Chunks is their bit mask.
type BadStripe struct {
	Stripe moraine.StripeID
	Chunks uint32
}

// BadChunks returns such stripes by number, from one on. It inspects at most limit items, and
// returns where to continue, 0 at the end.
func BadChunks(r *kvtx.View, from moraine.StripeID, limit int) (out []BadStripe, next moraine.StripeID, err error) {
	seen := 0
	err = r.Each(r.K.RepairStripe(from), kvtx.PrefixEnd(r.K.Table(record.TabRepairStripe)), func(key, value []byte) (bool, error) {
		i := record.RepairItem{Stripe: moraine.StripeID(record.LastU64(key))}
		if seen++; seen > limit {
			next = i.Stripe
			return false, nil
		}
		err := i.Decode(value)
		if err == nil && i.Bad != 0 {
			out = append(out, BadStripe{i.Stripe, i.Bad})
		}
		return true, err
	})
	return out, next, err
}
