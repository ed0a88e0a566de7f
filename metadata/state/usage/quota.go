package usage

import (
	"encoding/binary"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// Quota returns a directory's quota; a zero one if it has none.
func Quota(v *kvtx.View, dir moraine.InodeID) (q record.Quota, err error) {
	b, ok, err := v.R.Get(v.K.Quota(dir))
	if err != nil || !ok {
		return q, err
	}
	return q, q.Decode(b)
}

// holdQuotas fails if the command made a tree grow past its quota.
func holdQuotas(t *kvtx.Tx, s *record.UsageState) error {
	for _, e := range t.Usage.List {
		by := e.Delta.Add(e.Free.Neg())
		if e.Column != s.Live || by.Bytes <= 0 && by.Inodes <= 0 {
			continue
		}
		q, err := Quota(&t.View, e.Dir)
		if err != nil {
			return err
		}
		if now := e.Cell.Now.Add(e.Delta); q.Exceeded(now, by) {
			return OverQuota(t, e.Dir, q, e.Cell.Now, now)
		}
	}
	return nil
}

// OverQuota returns the error for an exceeded quota.
func OverQuota(t *kvtx.Tx, id moraine.InodeID, q record.Quota, was, now record.Usage) error {
	path, name, err := quotaNames(t, id)
	if err != nil {
		return err
	}
	what, have, want, most := "bytes", was.Bytes, now.Bytes, q.Bytes
	if q.Bytes == 0 || now.Bytes <= int64(q.Bytes) {
		what, have, want, most = "inodes", was.Inodes, now.Inodes, q.Inodes
	}
	return kvtx.Fail(moraine.QuotaExceeded, "quota", path, "%d %s are below %s; the request would make it %d, but the quota is %d: remove files there, or raise the quota",
		have, what, name, want, most)
}

// quotaNames returns the names of the directory in a quota error: as the reference, which clients
// replace by their own path, and in the text. The text has the path as the session
// writes it.
func quotaNames(t *kvtx.Tx, id moraine.InodeID) (ref, name string, err error) {
	dir, err := tree.ReadInode(&t.View, id)
	if err != nil {
		return "", "", err
	}
	sc := kvtx.Scope{Root: t.K.Top()}
	if t.Scope.Root != 0 { // a job has no session
		sc = t.Scope
	}
	path, ok, err := pathIn(&t.View, sc, dir)
	if err != nil {
		return "", "", err
	}
	switch in, err := tree.InScope(&t.View, sc, dir); {
	case err != nil:
		return "", "", err
	case !in:
		return "", "a directory above the session's", nil
	}
	if !ok {
		path = id.String()
	}
	return path, path, nil
}

// HasQuotas reports whether any directory has a quota.
func HasQuotas(r *kvtx.View) (bool, error) {
	s, err := UsageState(r)
	return err == nil && s.Quotas > 0, err
}

// maxQuotas is the largest number of quotas of a partition.
const maxQuotas = 100_000

// maxQuotaBytes bounds a quota in bytes, so that sums of bytes and quotas do not overflow.
const maxQuotaBytes = 1 << 62

// SetQuota sets, replaces or removes a directory's quota. A quota below the present usage is
// allowed; it forbids growth.
func SetQuota(t *kvtx.Tx, op *wire.SetQuota) (*wire.MetaResponse, error) {
	dir, err := tree.Directory(t, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	s, err := UsageState(&t.View)
	if err != nil {
		return nil, err
	}
	q := record.Quota{Bytes: op.GetBytes(), Inodes: op.GetInodes()}
	switch {
	case q.Bytes > maxQuotaBytes || q.Inodes > maxQuotaBytes:
		return nil, kvtx.Fail(moraine.TooLarge, "set quota", dir.Id.String(), "a quota is at most %d bytes or inodes", int64(maxQuotaBytes))
	}
	had, err := Quota(&t.View, dir.Id)
	if err != nil {
		return nil, err
	}
	if q != (record.Quota{}) { // what is delegated below has no quota, so that no error for one is late
		if err := tree.MeetAll(&t.View); err != nil {
			return nil, err
		}
	}
	switch {
	case q == record.Quota{}:
		if err := DropQuota(t, dir.Id); err != nil {
			return nil, err
		}
	case had == record.Quota{}:
		if s.Quotas >= maxQuotas {
			return nil, kvtx.Fail(moraine.TooLarge, "set quota", dir.Id.String(), "the partition has %d quotas, which is the limit: remove one first", maxQuotas)
		}
		s.Quotas++
		putUsageState(t, s)
		fallthrough
	default:
		t.Put(t.K.Quota(dir.Id), q.Encode())
	}
	return kvtx.Done(), nil
}

// DropQuota removes a directory's quota, if it has one.
func DropQuota(t *kvtx.Tx, dir moraine.InodeID) error {
	s, err := UsageState(&t.View)
	if err != nil || s.Quotas == 0 {
		return err
	}
	q, err := Quota(&t.View, dir)
	if err != nil || q == (record.Quota{}) {
		return err
	}
	s.Quotas--
	putUsageState(t, s)
	t.Del(t.K.Quota(dir))
	return nil
}

// ReadUsage answers the usage below a directory, or a file's directory, and the room left under all
// quotas above.
func ReadUsage(v *kvtx.View, sc kvtx.Scope, op *wire.GetUsage) (*wire.MetaResponse, error) {
	i, err := tree.ReadNamed(v, sc, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	s, err := UsageState(v)
	if err != nil {
		return nil, err
	}
	at := i.Id
	if i.Typ != record.TypeDirectory {
		if at, err = tree.ParentIn(v, sc, i); err != nil {
			return nil, err
		}
	}
	r := &wire.UsageReply{}
	if r.Usage, err = usageToWire(v, s, at); err != nil {
		return nil, err
	}
	if s.Quotas > 0 {
		err = room(v, sc, s, at, r)
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Usage{Usage: r}}, err
}

// room returns the room left at a directory, and the nearest directory with a quota. A quota
// outside the caller's scope counts, but is not named.
func room(v *kvtx.View, sc kvtx.Scope, s *record.UsageState, at moraine.InodeID, r *wire.UsageReply) error {
	r.RoomBytes, r.RoomInodes = maxQuotaBytes, maxQuotaBytes
	inside := true
	for depth := 0; at != 0 && depth <= kvtx.MaxDepth; depth++ {
		dir, err := tree.ReadInode(v, at)
		if err != nil {
			return err
		}
		q, err := Quota(v, at)
		if err != nil {
			return err
		}
		if q != (record.Quota{}) {
			u, err := usage(v, kvtx.UsageKey{Column: s.Live, Dir: at})
			if err != nil {
				return err
			}
			r.Limited = true
			if q.Bytes != 0 {
				r.RoomBytes = min(r.RoomBytes, uint64(max(int64(q.Bytes)-u.Bytes, 0)))
			}
			if q.Inodes != 0 {
				r.RoomInodes = min(r.RoomInodes, uint64(max(int64(q.Inodes)-u.Inodes, 0)))
			}
			if r.Quota == nil && inside {
				if r.Quota, err = usageToWire(v, s, at); err != nil {
					return err
				}
				if r.Quota.Path, _, err = pathIn(v, sc, dir); err != nil {
					return err
				}
			}
		}
		inside = inside && at != sc.Root
		at = dir.Parent
	}
	return nil
}

// pathIn returns a directory's path as the scope's session writes it; false if it has none.
func pathIn(v *kvtx.View, sc kvtx.Scope, dir *record.Inode) (string, bool, error) {
	path, ok, err := tree.PathOf(v, dir)
	if err != nil || !ok || sc.Root == v.K.Top() {
		return "/" + path, ok, err
	}
	root, err := tree.ReadInode(v, sc.Root)
	if err != nil {
		return "", false, err
	}
	above, ok, err := tree.PathOf(v, root)
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, above), "/"), ok, err
}

// usageToWire returns a directory's usage and quota in wire form.
func usageToWire(v *kvtx.View, s *record.UsageState, dir moraine.InodeID) (*wire.Usage, error) {
	u, err := usage(v, kvtx.UsageKey{Column: s.Live, Dir: dir})
	if err != nil {
		return nil, err
	}
	q, err := Quota(v, dir)
	return &wire.Usage{Inode: uint64(dir), Bytes: uint64(max(u.Bytes, 0)), Inodes: uint64(max(u.Inodes, 0)), QuotaBytes: q.Bytes, QuotaInodes: q.Inodes}, err
}

// ReadQuotas lists the directories with quotas in the caller's scope, by
// number, with their paths. Quotas outside the scope do not affect the answer.
// The read continues to the next one inside, or to the end of the table, which
// maxQuotas bounds.
func ReadQuotas(v *kvtx.View, sc kvtx.Scope, op *wire.ListQuotas) (*wire.MetaResponse, error) {
	s, err := UsageState(v)
	if err != nil {
		return nil, err
	}
	reply := &wire.QuotasReply{}
	limit := tree.ListLimit(op.GetLimit())
	inside := map[moraine.InodeID]bool{sc.Root: true} // by directory, if already known
	var failed error
	lo := v.K.Quota(moraine.InodeID(op.GetAfter() + 1))
	err = v.R.Scan(lo, kvtx.PrefixEnd(v.K.Table(record.TabQuota)), func(key, _ []byte) bool {
		var u *wire.Usage
		id := moraine.InodeID(binary.BigEndian.Uint64(key[3:]))
		if u, failed = quotaIn(v, sc, s, id, inside); failed != nil || u == nil {
			return failed == nil
		}
		if reply.More = len(reply.Quotas) == limit; reply.More {
			return false
		}
		reply.Quotas, reply.Last = append(reply.Quotas, u), uint64(id)
		return true
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Quotas{Quotas: reply}}, nil
}

// quotaIn returns what the caller may see of a directory with a quota; nil if it was removed or is
// outside the scope. inside caches which directories are in the scope.
func quotaIn(v *kvtx.View, sc kvtx.Scope, s *record.UsageState, id moraine.InodeID, inside map[moraine.InodeID]bool) (*wire.Usage, error) {
	if sc.Root != v.K.Top() {
		if ok, err := belowKnown(v, id, inside); err != nil || !ok {
			return nil, err
		}
	}
	dir, err := tree.ReadInode(v, id)
	if err != nil {
		return nil, kvtx.Damaged(err)
	}
	path, ok, err := pathIn(v, sc, dir)
	if err != nil || !ok {
		return nil, err
	}
	u, err := usageToWire(v, s, id)
	if err != nil {
		return nil, err
	}
	u.Path = path
	return u, nil
}

// belowKnown reports whether a directory is below one known to be inside, and caches the result for
// all directories on the way.
func belowKnown(v *kvtx.View, at moraine.InodeID, known map[moraine.InodeID]bool) (bool, error) {
	var way []moraine.InodeID
	in := false
	for at != 0 && len(way) <= kvtx.MaxDepth {
		if is, ok := known[at]; ok {
			in = is
			break
		}
		way = append(way, at)
		dir, err := tree.ReadInode(v, at)
		if err != nil {
			return false, kvtx.Damaged(err)
		}
		at = dir.Parent
	}
	for _, id := range way {
		known[id] = in
	}
	return in, nil
}
