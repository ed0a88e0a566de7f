package fleet

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// maxIntents is the largest number of intents that one command records, fills or ends.
const maxIntents = 128

// readIntent returns the live intent for a chunk; nil if there is none.
func readIntent(v *kvtx.View, chunk moraine.ChunkID) (*record.Intent, error) {
	b, ok, err := v.R.Get(v.K.Intent(chunk))
	if err != nil || !ok {
		return nil, err
	}
	i := &record.Intent{Chunk: chunk}
	return i, i.Decode(b)
}

// AssignIntents records the targets that the leader chose for a job.
func AssignIntents(t *kvtx.Tx, op *statepb.AssignIntents) (*wire.MetaResponse, error) {
	j, err := jobs.Job(&t.View, moraine.JobID(op.GetJob()))
	if err != nil {
		return nil, err
	}
	if j == nil || !j.Live() || !record.OfStripes(j.Kind) {
		return nil, kvtx.Fail(moraine.Fenced, "assign intents", moraine.JobID(op.GetJob()).String(), "no repair job of this number is in progress")
	}
	return recordIntents(t, j, op.GetIntents())
}

// BeginRepair records intents for the chunks of a job's stripes at the request of the job's holder.
// A retry of the same intent gets the same answer; an intent for the same chunk on another device
// replaces the former.
func BeginRepair(t *kvtx.Tx, op *wire.BeginRepair) (*wire.MetaResponse, error) {
	j, err := heldRepair(t, "begin repair", op.GetJob(), op.GetLeaseEpoch())
	if err != nil {
		return nil, err
	}
	return recordIntents(t, j, op.GetIntents())
}

// heldRepair returns a repair or rebalance job that the caller leased under the given epoch.
func heldRepair(t *kvtx.Tx, op string, id, epoch uint64) (*record.Job, error) {
	j, err := jobs.HeldJob(t, op, id, epoch)
	if err == nil && !record.OfStripes(j.Kind) {
		err = kvtx.Fail(moraine.InvalidArgument, op, j.Id.String(), "the job is not a repair or rebalance job")
	}
	return j, err
}

// recordIntents records intents of a job and answers with them.
func recordIntents(t *kvtx.Tx, j *record.Job, intents []*wire.Intent) (*wire.MetaResponse, error) {
	if len(intents) > maxIntents {
		return nil, kvtx.Fail(moraine.TooLarge, "begin repair", j.Id.String(), "the request has %d intents, %d at most", len(intents), maxIntents)
	}
	reply := &wire.BeginRepairReply{}
	for _, w := range intents {
		in, err := recordIntent(t, j, w)
		if err != nil {
			return nil, err
		}
		reply.Intents = append(reply.Intents, in.ToWire())
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_BeginRepair{BeginRepair: reply}}, nil
}

// recordIntent records one intent of a job. Stale means that the stripe, the device or the layout
// version differs from the caller's view.
func recordIntent(t *kvtx.Tx, j *record.Job, w *wire.Intent) (*record.Intent, error) {
	id := moraine.StripeID(w.GetStripe())
	stale := func(format string, args ...any) (*record.Intent, error) {
		return nil, kvtx.Fail(moraine.Stale, "begin repair", id.String(), format, args...)
	}
	item, err := RepairOf(&t.View, id)
	if err != nil {
		return nil, err
	}
	if item == nil || item.Job != j.Id {
		return stale("the stripe is dead, or another job repairs it")
	}
	s, err := Stripe(&t.View, id)
	if err != nil {
		return nil, err
	}
	if s == nil || w.GetIndex() >= uint32(len(s.Chunks)) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "begin repair", id.String(), "the stripe is dead or has no chunk %d", w.GetIndex())
	}
	d, err := Device(&t.View, moraine.DeviceID(w.GetDevice()))
	if err != nil {
		return nil, err
	}
	if d == nil || d.State != record.DeviceIn {
		return stale("device %d does not accept chunks", w.GetDevice())
	}
	chunk := moraine.ChunkID{Stripe: id, Index: uint8(w.GetIndex())}
	have, err := readIntent(&t.View, chunk)
	if err != nil {
		return nil, err
	}
	if have != nil {
		asked := moraine.LayoutVersion(w.GetVersion())
		if have.Device == d.Id && (asked == 0 || asked == have.Version) {
			return have, nil
		}
		if err := endIntent(t, s, have); err != nil {
			return nil, err
		}
	}
	in := &record.Intent{Chunk: chunk, Job: j.Id, Device: d.Id, Version: s.Version + 1, Base: s.Version}
	if v := moraine.LayoutVersion(w.GetVersion()); v != 0 && v != in.Version {
		return stale("the next layout version is %d, but the request has %d", in.Version, v)
	}
	t.Put(t.K.Intent(chunk), in.Encode())
	return in, nil
}

// CommitRepair publishes chunks that were written under intents, stripe by stripe. It changes a
// stripe's layout if the layout is still the one from which the intents were made. The replaced
// chunk gets a tombstone on its old device.
func CommitRepair(t *kvtx.Tx, op *wire.CommitRepair) (*wire.MetaResponse, error) {
	j, err := heldRepair(t, "commit repair", op.GetJob(), op.GetLeaseEpoch())
	if err != nil {
		return nil, err
	}
	if len(op.GetIntents()) > maxIntents {
		return nil, kvtx.Fail(moraine.TooLarge, "commit repair", j.Id.String(), "the request has %d intents, %d at most", len(op.GetIntents()), maxIntents)
	}
	var order []moraine.StripeID
	byStripe := make(map[moraine.StripeID][]*wire.Intent)
	for _, w := range op.GetIntents() {
		id := moraine.StripeID(w.GetStripe())
		if byStripe[id] == nil {
			order = append(order, id)
		}
		byStripe[id] = append(byStripe[id], w)
	}
	reply := &wire.CommitRepairReply{}
	for _, id := range order {
		ok, err := commitStripe(t, j, id, byStripe[id])
		if err != nil {
			return nil, err
		}
		if !ok {
			reply.Stale = append(reply.Stale, uint64(id))
			continue
		}
		reply.Committed += uint64(len(byStripe[id]))
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_CommitRepair{CommitRepair: reply}}, nil
}

// commitStripe publishes all the given intents of a stripe, or none (false).
func commitStripe(t *kvtx.Tx, j *record.Job, id moraine.StripeID, intents []*wire.Intent) (bool, error) {
	s, err := Stripe(&t.View, id)
	if err != nil || s == nil {
		return false, err
	}
	filled := make([]*record.Intent, 0, len(intents))
	asked := make([]*wire.Intent, 0, len(intents)) // the requested intents
	for _, w := range intents {
		if w.GetIndex() >= uint32(len(s.Chunks)) {
			return false, nil
		}
		in, ok, err := fillable(t, j, s, w)
		if err != nil || !ok {
			return false, err
		}
		if in != nil {
			filled, asked = append(filled, in), append(asked, w)
		}
	}
	if len(filled) == 0 {
		return true, nil // published by an earlier request whose answer was lost
	}
	item, err := RepairOf(&t.View, id)
	if err != nil {
		return false, err
	}
	if item == nil || item.Job != j.Id {
		return false, nil
	}
	for i, in := range filled {
		parity := !s.Scheme.IsCopies() && in.Chunk.Index >= s.Scheme.K
		if recoded := asked[i].GetRecoded(); recoded && !parity || !recoded && item.Recode&(1<<in.Chunk.Index) != 0 {
			return false, nil // data must never be encoded again, and wrong parity always must
		}
	}
	mended := *item
	old := s.Layout().Devices
	for i, in := range filled {
		if err := moveChunk(t, s, in); err != nil {
			return false, err
		}
		if asked[i].GetRecoded() {
			s.Chunks[in.Chunk.Index].CRC = asked[i].GetCrc()
		}
		mended.Bad &^= 1 << in.Chunk.Index
		mended.Recode &^= 1 << in.Chunk.Index
	}
	putStripe(t, old, s)
	putRepair(t, item, &mended)
	return true, QueueRepair(t, s, 0)
}

// fillable checks an intent that a mover reports as filled against its record. It returns nil and
// true for one that is already published.
func fillable(t *kvtx.Tx, j *record.Job, s *moraine.Stripe, w *wire.Intent) (*record.Intent, bool, error) {
	in, err := readIntent(&t.View, moraine.ChunkID{Stripe: s.ID, Index: uint8(w.GetIndex())})
	if err != nil {
		return nil, false, err
	}
	device, version := moraine.DeviceID(w.GetDevice()), moraine.LayoutVersion(w.GetVersion())
	if in == nil {
		return nil, s.Chunks[w.GetIndex()].Device == device && s.Version >= version, nil
	}
	if in.Job != j.Id || in.Device != device || in.Version != version || (s.Version != in.Base && s.Version != in.Version) {
		return nil, false, nil
	}
	d, err := Device(&t.View, device)
	if err != nil || d == nil || d.State != record.DeviceIn {
		return nil, false, err
	}
	return in, true, nil
}

// moveChunk makes the chunk that was written under an intent the live one. The caller writes the
// stripe.
func moveChunk(t *kvtx.Tx, s *moraine.Stripe, in *record.Intent) error {
	c := &s.Chunks[in.Chunk.Index]
	old := c.Device
	LeaveMemory(t, s, in.Chunk.Index, c)
	c.Device, c.Level, c.Epoch = in.Device, moraine.NVMe, 0
	s.Version = max(s.Version, in.Version)
	t.Del(t.K.Intent(in.Chunk))
	if old == in.Device {
		return nil // the new chunk replaced the old one in place
	}
	return AddTombstone(t, old, in.Chunk, in.Version, s.Scheme.ChunkLen(s.Length), false)
}

// EndIntents ends intents that will not be filled. It skips those that have already ended.
func EndIntents(t *kvtx.Tx, op *wire.EndIntents) (*wire.MetaResponse, error) {
	if len(op.GetIntents()) > maxIntents {
		return nil, kvtx.Fail(moraine.TooLarge, "end intents", "", "the request has %d intents, %d at most", len(op.GetIntents()), maxIntents)
	}
	for _, w := range op.GetIntents() {
		in, err := readIntent(&t.View, moraine.ChunkID{Stripe: moraine.StripeID(w.GetStripe()), Index: uint8(w.GetIndex())})
		if err != nil {
			return nil, err
		}
		if in == nil || w.GetIndex() >= moraine.MaxChunks || in.Device != moraine.DeviceID(w.GetDevice()) || in.Version != moraine.LayoutVersion(w.GetVersion()) {
			continue
		}
		j, err := jobs.Job(&t.View, in.Job)
		if err != nil {
			return nil, err
		}
		if j != nil && j.State == wire.JobState_JOB_STATE_RUNNING {
			if err := jobs.MustHold(t, "end intents", j); err != nil {
				return nil, err
			}
		}
		s, err := Stripe(&t.View, in.Chunk.Stripe)
		if err != nil {
			return nil, err
		}
		if err := endIntent(t, s, in); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// endStripeIntents ends the intents of a job for one stripe, which may be dead.
func endStripeIntents(t *kvtx.Tx, job moraine.JobID, id moraine.StripeID) error {
	return endEachIntent(t, job, id, func() (*moraine.Stripe, error) { return Stripe(&t.View, id) })
}

// endIntentsOf is endStripeIntents for a stripe that the caller has read and may change further.
func endIntentsOf(t *kvtx.Tx, job moraine.JobID, s *moraine.Stripe) error {
	return endEachIntent(t, job, s.ID, func() (*moraine.Stripe, error) { return s, nil })
}

// endEachIntent ends the intents of a job for one stripe; stripe reads the stripe if necessary.
func endEachIntent(t *kvtx.Tx, job moraine.JobID, id moraine.StripeID, stripe func() (*moraine.Stripe, error)) error {
	keys, err := t.KeysUnder(t.K.Intents(id), moraine.MaxChunks)
	if err != nil {
		return err
	}
	for _, key := range keys {
		in, err := readIntent(&t.View, moraine.ChunkID{Stripe: id, Index: key[len(key)-1]})
		if err != nil {
			return err
		}
		if in == nil || in.Job != job {
			continue
		}
		s, err := stripe()
		if err != nil {
			return err
		}
		if err := endIntent(t, s, in); err != nil {
			return err
		}
	}
	return nil
}

// endIntent ends an intent whose chunk never became live. A chunk that was, or still may be,
// written under it is dead. It gets a tombstone, and a record that explains it until the device has
// reported afterwards. s is the stripe; nil if it died.
func endIntent(t *kvtx.Tx, s *moraine.Stripe, in *record.Intent) error {
	t.Del(t.K.Intent(in.Chunk))
	var bytes int64
	if s != nil {
		if s.Version < in.Version {
			s.Version = in.Version
			t.Put(t.K.Stripe(s.ID), record.EncodeStripe(s))
		}
		if s.Chunks[in.Chunk.Index].Device == in.Device {
			return nil // the chunk would have replaced the live one
		}
		bytes = s.Scheme.ChunkLen(s.Length)
	}
	t.Put(t.K.EndedIntent(in.Device, in.Chunk), record.EndedIntent{At: t.Index, Since: t.ClusterTime()}.Encode())
	return AddTombstone(t, in.Device, in.Chunk, in.Version+1, bytes, false)
}
