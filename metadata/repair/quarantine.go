package repair

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxListed bounds the quarantined chunks that a leader lists; more are only counted.
	maxListed = 65536
	// quarantinePage bounds those in one answer.
	quarantinePage = 4096
)

// list records the unexplained chunks that a full pass over a device found. The caller holds mu.
func (r *passes) list(device uint32, p *pass) {
	r.listed -= len(r.quarantined[device])
	delete(r.quarantined, device)
	if p.quarantined = p.quarantined[:min(len(p.quarantined), maxListed-r.listed)]; len(p.quarantined) == 0 {
		return
	}
	slices.SortFunc(p.quarantined, func(a, b *wire.QuarantinedChunk) int {
		return cmp.Or(cmp.Compare(a.Stripe, b.Stripe), cmp.Compare(a.Index, b.Index))
	})
	r.quarantined[device], p.quarantined = p.quarantined, nil
	r.listed += len(r.quarantined[device])
}

// page returns quarantined chunks in order after one, whether there are more, and the bytes of all
// listed ones.
func (r *passes) page(after *wire.ListQuarantine, limit int) (out []*wire.QuarantinedChunk, more bool, bytes uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, device := range slices.Sorted(maps.Keys(r.quarantined)) {
		for _, c := range r.quarantined[device] {
			bytes += c.Length
			behind := cmp.Or(cmp.Compare(device, after.AfterDevice), cmp.Compare(c.Stripe, after.AfterStripe), cmp.Compare(c.Index, after.AfterIndex)) > 0
			switch {
			case !behind:
			case len(out) == limit:
				more = true
			default:
				out = append(out, c)
			}
		}
	}
	return out, more, bytes
}

// ListQuarantine lists the unexplained chunks, which only an administrator may delete. The leader
// knows them from device reports since its leadership began.
func (k *Reports) ListQuarantine(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if err := k.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	asked := c.Req.GetListQuarantine()
	limit := quarantinePage
	if asked.Limit > 0 {
		limit = min(limit, int(asked.Limit))
	}
	reply := &wire.QuarantineReply{}
	chunks, more, listed := k.passes.page(asked, limit)
	err := k.Store.View(func(r kvtx.Reader, _ uint64) error {
		n, err := kvtx.ReadCounters(k.Machine.View(r))
		reply.TotalBytes = n.LeakedBytes
		return err
	})
	v := k.fleet.Topology.View()
	for _, chunk := range chunks {
		named := &wire.QuarantinedChunk{Device: chunk.Device, Stripe: chunk.Stripe, Index: chunk.Index, Length: chunk.Length, Incarnation: chunk.Incarnation}
		if d := v.Devices[chunk.Device]; d != nil {
			named.Host = d.Host
		}
		reply.Chunks = append(reply.Chunks, named)
	}
	reply.More, reply.UnlistedBytes = more, reply.TotalBytes-min(listed, reply.TotalBytes)
	return &wire.MetaResponse{Result: &wire.MetaResponse_Quarantine{Quarantine: reply}}, err
}
