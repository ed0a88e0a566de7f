package tier

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxFlushSums is the largest number of piece checksums in one CommitFlush.
const MaxFlushSums = 4096

// CommitFlush stores piece checksums of the object being uploaded. The last request records the
// object that the store confirmed.
func CommitFlush(t *kvtx.Tx, op *wire.CommitFlush) (*wire.MetaResponse, error) {
	const name = "commit flush"
	j, err := HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_FLUSH)
	if err != nil {
		return nil, err
	}
	in, err := ObjectIntent(&t.View, j.Id)
	if err != nil {
		return nil, err
	}
	if in == nil {
		return flushedBefore(t, op)
	}
	if in.Kind != wire.IntentKind_INTENT_KIND_UPLOAD {
		return nil, kvtx.Fail(moraine.Conflict, name, in.At.String(), "the job has not announced an upload")
	}
	if err := takeSums(t, in, op); err != nil {
		return nil, err
	}
	if !op.GetFinal() {
		return kvtx.Done(), nil
	}
	o, err := confirmed(in, op.GetObject())
	if err != nil {
		return nil, err
	}
	i, err := tree.Inode(t, moraine.InodeID(j.Target))
	if kvtx.MoraineKind(err) == moraine.NotFound {
		i, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	o.Inode = moraine.InodeID(j.Target)
	useful := i != nil
	if i != nil {
		o.Tenant = i.Tenant
		if i.Generation == o.Generation && uint64(i.Size) != o.Size {
			return nil, kvtx.Fail(moraine.InvalidArgument, name, in.At.String(), "the file has %d bytes, but the object has %d", i.Size, o.Size)
		}
		late, err := outdated(t, o, i)
		if err != nil {
			return nil, err
		}
		switch err := allSums(t, o); {
		case late:
			useful = false
		case err == nil:
		case kvtx.MoraineKind(err) == moraine.InvalidArgument && in.Epoch != j.Epoch:
			// A former holder failed before it sent them. Without its checksums the object is
			// useless, and the next flush overwrites it.
			useful = false
		default:
			return nil, err
		}
	}
	if err := recordObject(t, in, o, i, useful); err != nil {
		return nil, err
	}
	if useful {
		j.Made = true
		jobs.PutJob(t, j)
	}
	return objectReply(o), nil
}

// outdated reports whether the file already has an object of the same or newer content. This
// object's upload then settled late, at the key of an earlier name.
func outdated(t *kvtx.Tx, o *record.Object, i *record.Inode) (bool, error) {
	if i.Object == 0 || o.Generation > i.ObjectGen {
		return false, nil
	}
	newest, err := layout.MustObject(&t.View, i.Object)
	return err == nil && newest.At != o.At, err // at the same key the upload overwrites its bytes
}

func objectReply(o *record.Object) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Object{Object: &wire.ObjectReply{Object: o.ToWire()}}}
}

// flushedBefore answers a retry after a lost answer: the same object is already recorded.
func flushedBefore(t *kvtx.Tx, op *wire.CommitFlush) (*wire.MetaResponse, error) {
	const name = "commit flush"
	want := op.GetObject()
	p := record.Place{Bucket: want.GetBucket(), Key: want.GetKey()}
	if err := layout.Check(p, name); err != nil {
		return nil, err
	}
	w, err := layout.Owner(&t.View, p)
	if err != nil {
		return nil, err
	}
	if op.GetFinal() && w.Object != 0 {
		o, err := layout.MustObject(&t.View, w.Object)
		if err != nil {
			return nil, err
		}
		if o.Etag == want.GetEtag() && o.Size == want.GetSize() && o.Crc == want.GetCrc() && uint64(o.Generation) == want.GetGeneration() {
			return objectReply(o), nil
		}
	}
	return nil, kvtx.Fail(moraine.Conflict, name, p.String(), "the job has not announced an upload")
}

// takeSums stores the piece checksums in a CommitFlush. Blocks are complete except the last, and
// may be repeated.
func takeSums(t *kvtx.Tx, in *record.ObjectIntent, op *wire.CommitFlush) error {
	sums, first := op.GetSums(), op.GetFirstSum()
	bad := func(format string, args ...any) error {
		return kvtx.Fail(moraine.InvalidArgument, "commit flush", in.At.String(), format, args...)
	}
	switch {
	case len(sums) == 0:
		return nil
	case len(sums) > MaxFlushSums:
		return kvtx.Fail(moraine.TooLarge, "commit flush", in.At.String(), "the request has %d checksums, %d at most", len(sums), MaxFlushSums)
	case first%record.SumsPerBlock != 0:
		return bad("the checksums begin at piece %d, which is not a multiple of %d", first, record.SumsPerBlock)
	case first > record.MaxPieces-uint64(len(sums)):
		return kvtx.Fail(moraine.TooLarge, "commit flush", in.At.String(), "the object has more than %d pieces", record.MaxPieces)
	}
	for len(sums) > 0 {
		n := min(len(sums), record.SumsPerBlock)
		t.Put(t.K.ObjectSum(in.Object, first/record.SumsPerBlock), record.EncodeSums(sums[:n]))
		first += record.SumsPerBlock
		sums = sums[n:]
	}
	return nil
}

// allSums fails if checksums of the object's pieces are missing.
func allSums(t *kvtx.Tx, o *record.Object) error {
	want := o.Pieces()
	for block := uint64(0); block*record.SumsPerBlock < want; block++ {
		sums, err := layout.Sums(&t.View, o.Id, block)
		if err != nil {
			return err
		}
		if n := min(want-block*record.SumsPerBlock, record.SumsPerBlock); uint64(len(sums)) != n {
			return kvtx.Fail(moraine.InvalidArgument, "commit flush", o.At.String(), "%d checksums from piece %d on arrived, but the object has %d there", len(sums), block*record.SumsPerBlock, n)
		}
	}
	return nil
}

// confirmed returns the object that the store has, after checking it against the intent.
func confirmed(in *record.ObjectIntent, w *wire.Object) (*record.Object, error) {
	const op = "commit flush"
	o := &record.Object{Id: in.Object, At: in.At, Version: w.GetVersion(), Etag: w.GetEtag(), Size: w.GetSize(), Crc: w.GetCrc(),
		Generation: in.Generation, Piece: w.GetPiece(), Verified: w.GetVerified()}
	switch {
	case !in.Completing:
		return nil, kvtx.Fail(moraine.Conflict, op, in.At.String(), "the job has not announced that it completes the upload")
	case o.At != record.Place{Bucket: w.GetBucket(), Key: w.GetKey()} || o.Size != in.Size || o.Crc != in.Crc:
		return nil, kvtx.Fail(moraine.Conflict, op, in.At.String(), "the job has announced another object")
	case !isVerified(o.Verified):
		return nil, kvtx.Fail(moraine.InvalidArgument, op, in.At.String(), "the object is not verified: compare its checksum with the file's, from the store or from reading it back")
	case o.Etag == "" || len(o.Etag) > record.MaxToken || len(o.Version) > record.MaxToken:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, in.At.String(), "the object needs an ETag; ETag and version have at most %d bytes each", record.MaxToken)
	case o.Size > tree.MaxFileSize || (o.Size > 0 && o.Piece == 0) || o.Pieces() > record.MaxPieces:
		return nil, kvtx.Fail(moraine.TooLarge, op, in.At.String(), "%d bytes in pieces of %d bytes are invalid: an object has at most %d pieces", o.Size, o.Piece, record.MaxPieces)
	}
	return o, nil
}

// isVerified reports whether v is a valid way to compare an object's bytes with ours.
func isVerified(v wire.Verified) bool {
	return v == wire.Verified_VERIFIED_STORE_CRC || v == wire.Verified_VERIFIED_READ_BACK
}

// recordObject makes an uploaded object the one at its key and the newest of its file. A useless
// object, for example because the file is gone (i is nil), is queued for deletion.
func recordObject(t *kvtx.Tx, in *record.ObjectIntent, o *record.Object, i *record.Inode, useful bool) error {
	if err := unclaim(t, in, 0); err != nil {
		return err
	}
	w, err := layout.Owner(&t.View, in.At)
	if err != nil {
		return err
	}
	if w.Object != 0 {
		if err := overwritten(t, w.Object, i); err != nil {
			return err
		}
	}
	w.Object = o.Id
	if err := layout.PutOwner(t, w); err != nil {
		return err
	}
	t.Count[record.CObjects]++
	t.Count[record.CObjectBytes] += o.Size
	if !useful {
		if err := layout.Condemn(t, o, t.ClusterTime()+residueDelay); err != nil {
			return err
		}
		layout.PutObject(t, o)
		if i != nil {
			tree.PutInode(t, i)
		}
		return nil
	}
	if i.Object != 0 {
		if err := layout.ReleaseNewest(t, i); err != nil {
			return err
		}
	}
	o.Refs, o.Newest = 1, true
	layout.PutObject(t, o)
	i.Object, i.ObjectGen = o.Id, o.Generation
	if i.Clean() {
		i.Level = moraine.Object
	}
	tree.PutInode(t, i)
	return nil
}

// overwritten drops the record of an object whose bytes were overwritten. BeginObject made sure
// that nothing needed them.
func overwritten(t *kvtx.Tx, id moraine.ObjectID, i *record.Inode) error {
	old, err := layout.MustObject(&t.View, id)
	if err != nil {
		return err
	}
	if old.Refs > 0 && (i == nil || old.MustStay(i.Id)) {
		return kvtx.Corrupt("commit flush", old.At.String(), "the flush replaced object %s, which other files need", id)
	}
	if i != nil && i.Object == old.Id {
		i.Object, i.ObjectGen = 0, 0
	}
	return layout.DropObject(t, old)
}

// residueDelay is how long the bytes at a moved object's old key stay before a job deletes them, in
// milliseconds of cluster time. Within it, a flush that wants the key can overwrite them.
const residueDelay = 10 * 60 * 1000

// MoveObject records that an object was copied to another key, under the job's intent. The bytes at
// the old key belong to nothing any more. They get a record of their own, so that a job deletes
// them if nothing overwrites them.
func MoveObject(t *kvtx.Tx, op *wire.MoveObject) (*wire.MetaResponse, error) {
	const name = "move object"
	j, err := HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_FLUSH)
	if err != nil {
		return nil, err
	}
	w := op.GetObject()
	o, err := layout.Object(&t.View, moraine.ObjectID(w.GetId()))
	if err != nil {
		return nil, err
	}
	in, err := ObjectIntent(&t.View, j.Id)
	switch {
	case err != nil:
		return nil, err
	case o == nil:
		return nil, kvtx.Fail(moraine.NotFound, name, moraine.ObjectID(w.GetId()).String(), "")
	case in == nil && o.At == record.Place{Bucket: w.GetBucket(), Key: w.GetKey()}:
		return objectReply(o), nil // the answer was lost
	case in == nil || in.Kind != wire.IntentKind_INTENT_KIND_COPY || in.Object != o.Id || in.At != record.Place{Bucket: w.GetBucket(), Key: w.GetKey()} || o.At.Key != in.Source:
		return nil, kvtx.Fail(moraine.Conflict, name, o.At.String(), "the job has not announced this copy")
	case in.Epoch != j.Epoch:
		return nil, kvtx.Fail(moraine.Conflict, name, o.At.String(), "an earlier holder of the job announced the copy")
	case !isVerified(w.GetVerified()):
		return nil, kvtx.Fail(moraine.InvalidArgument, name, o.At.String(), "the copy is not verified against the object")
	case w.GetEtag() == "" || len(w.GetEtag()) > record.MaxToken || len(w.GetVersion()) > record.MaxToken:
		return nil, kvtx.Fail(moraine.InvalidArgument, name, o.At.String(), "the object needs an ETag; ETag and version have at most %d bytes each", record.MaxToken)
	}
	if err := unclaim(t, in, 0); err != nil {
		return nil, err
	}
	to, err := layout.Owner(&t.View, in.At)
	if err != nil {
		return nil, err
	}
	if to.Object != 0 { // an earlier copy may have left bytes here
		if err := overwritten(t, to.Object, nil); err != nil {
			return nil, err
		}
	}
	left := &record.Object{At: o.At, Version: o.Version, Etag: o.Etag, Size: o.Size, Crc: o.Crc, Tenant: o.Tenant}
	if err := recordResidue(t, left, t.ClusterTime()+residueDelay); err != nil {
		return nil, err
	}
	if err := layout.ForgetBad(t, o); err != nil { // its bytes existed, since they could be copied
		return nil, err
	}
	o.At, o.Etag, o.Version, o.Kept, o.Verified = in.At, w.GetEtag(), w.GetVersion(), true, w.GetVerified()
	layout.PutObject(t, o)
	to.Object = o.Id
	return objectReply(o), layout.PutOwner(t, to)
}

// recordResidue records bytes that are, or may be, at a key and belong to nothing. They become an
// object. A job deletes it once cluster time has reached after.
func recordResidue(t *kvtx.Tx, left *record.Object, after uint64) error {
	id, err := t.NextID(record.CObject)
	if err != nil {
		return err
	}
	left.Id = moraine.ObjectID(id)
	if err := layout.Condemn(t, left, after); err != nil {
		return err
	}
	layout.PutObject(t, left)
	t.Count[record.CObjects]++
	t.Count[record.CObjectBytes] += left.Size
	w, err := layout.Owner(&t.View, left.At)
	if err != nil {
		return err
	}
	w.Object = left.Id
	return layout.PutOwner(t, w)
}

// CommitEvict replaces all extents of a clean file by one extent of its object. The holder of the
// job has confirmed with the store that the object exists.
func CommitEvict(t *kvtx.Tx, op *wire.CommitEvict) (*wire.MetaResponse, error) {
	const name = "commit evict"
	j, err := HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_EVICT)
	if err != nil {
		return nil, err
	}
	i, err := tree.Inode(t, moraine.InodeID(j.Target))
	if err != nil {
		return nil, err
	}
	ref := i.Id.String()
	if moraine.Generation(op.GetGeneration()) != i.Generation || !i.Clean() || moraine.ObjectID(op.GetObject()) != i.Object {
		return nil, kvtx.Fail(moraine.Stale, name, ref, "the file changed: object %s of generation %d no longer has all its bytes", moraine.ObjectID(op.GetObject()), op.GetGeneration())
	}
	if i.Evicted == i.Size {
		return tree.EntryReply(i), nil // nothing is left to evict, or the answer was lost
	}
	o, err := layout.MustObject(&t.View, i.Object)
	if err != nil {
		return nil, err
	}
	if !isVerified(o.Verified) {
		return nil, kvtx.Fail(moraine.Conflict, name, o.At.String(), "object %s is not verified: flush the file again before eviction", o.Id)
	}
	if bad, err := IsBad(&t.View, o.Id); bad || err != nil {
		if err == nil {
			err = kvtx.Fail(moraine.Lost, name, o.At.String(), "object %s is missing or differs in the bucket: the file keeps its stripes", o.Id)
		}
		return nil, err
	}
	w, err := layout.Owner(&t.View, o.At)
	if err != nil {
		return nil, err
	}
	if err := layout.Settled(w, name, 0, t.ClusterTime()); err != nil {
		return nil, err
	}
	if w.Object != o.Id || o.Size != uint64(i.Size) {
		return nil, kvtx.Corrupt(name, ref, "object %s is not at its key, or has another size than the file", o.Id)
	}
	size := i.Size
	old := i.DropContent()
	i.Size, i.Degraded = size, 0
	if err := layout.AddTable(t, i, []moraine.Extent{{Length: size, Object: o.Id}}); err != nil {
		return nil, err
	}
	if err := layout.Discard(t, old); err != nil {
		return nil, err
	}
	tree.PutInode(t, i)
	return tree.EntryReply(i), nil
}
