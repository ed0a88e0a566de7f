package state

import (
	"encoding/binary"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// quota returns a directory's quota; a zero one where it has none.
func (v *view) quota(dir moraine.InodeID) (q record.Quota, err error) {
	b, ok, err := v.r.Get(v.k.quota(dir))
	if err != nil || !ok {
		return q, err
	}
	return q, q.Decode(b)
}

// holdQuotas fails where the command made a tree grow past its quota.
func (m *Machine) holdQuotas(t *tx, s *record.UsageState) error {
	for _, e := range t.usage.list {
		by := e.delta.Add(e.free.Neg())
		if e.column != s.Live || by.Bytes <= 0 && by.Inodes <= 0 {
			continue
		}
		q, err := t.quota(e.dir)
		if err != nil {
			return err
		}
		if now := e.cell.now.Add(e.delta); q.Exceeded(now, by) {
			return t.overQuota(e.dir, q, e.cell.now, now)
		}
	}
	return nil
}

// overQuota says which quota is in the way.
func (t *tx) overQuota(id moraine.InodeID, q record.Quota, was, now record.Usage) error {
	path, name, err := t.quotaNames(id)
	if err != nil {
		return err
	}
	what, have, want, most := "bytes", was.Bytes, now.Bytes, q.Bytes
	if q.Bytes == 0 || now.Bytes <= int64(q.Bytes) {
		what, have, want, most = "inodes", was.Inodes, now.Inodes, q.Inodes
	}
	return fail(moraine.QuotaExceeded, "quota", path, "%d %s are below %s, this would make them %d, and its quota is %d: remove something there, or have the quota raised",
		have, what, name, want, most)
}

// quotaNames returns what the error of a full quota names its directory: as its
// object, which the clients put their own in place of, and in its text. From
// levelQuotaNames on that is the path as the session writes it; answers are part
// of the state, so servers of two builds must word them alike.
func (t *tx) quotaNames(id moraine.InodeID) (ref, name string, err error) {
	names, err := t.speaks(levelQuotaNames)
	if err != nil {
		return "", "", err
	}
	dir, err := t.view.inode(id)
	if err != nil {
		return "", "", err
	}
	sc := scope{root: t.k.top()}
	if names && t.scope.root != 0 { // a job is nobody's session
		sc = t.scope
	}
	path, ok, err := t.pathIn(sc, dir)
	if err != nil {
		return "", "", err
	}
	if names {
		switch in, err := t.inScope(sc, dir); {
		case err != nil:
			return "", "", err
		case !in:
			return "", "a directory above the session's", nil
		}
	}
	if !ok {
		path = id.String()
	}
	if !names {
		return path, "it", nil
	}
	return path, path, nil
}

// HasQuotas reports whether any directory has a quota.
func (m *Machine) HasQuotas(r Reader) (bool, error) {
	s, err := m.view(r).usageState()
	return err == nil && s.Quotas > 0, err
}

// MaxQuotas is the most quotas of a partition.
const MaxQuotas = 100_000

// maxQuotaBytes bounds a quota, so that sums of bytes and quotas do not
// overflow.
const maxQuotaBytes = 1 << 62

// setQuota gives a directory a quota, in place of the one that it has, or takes
// it away. A quota below what is there already is taken: it lets nothing grow.
func (m *Machine) setQuota(t *tx, op *wire.SetQuota) (*wire.MetaResponse, error) {
	dir, err := t.directory(moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	s, err := t.usageState()
	if err != nil {
		return nil, err
	}
	q := record.Quota{Bytes: op.GetBytes(), Inodes: op.GetInodes()}
	switch {
	case s.Live == 0 && s.Building != 0:
		return nil, fail(moraine.Busy, "set quota", dir.Id.String(), "what is in the cluster is being counted for the first time (moraine job ls): try again when that is done")
	case s.Live == 0:
		return nil, fail(moraine.Unavailable, "set quota", dir.Id.String(), "nothing is counted at the cluster's feature level")
	case q.Bytes > maxQuotaBytes || q.Inodes > maxQuotaBytes:
		return nil, fail(moraine.TooLarge, "set quota", dir.Id.String(), "%d at most", int64(maxQuotaBytes))
	}
	had, err := t.quota(dir.Id)
	if err != nil {
		return nil, err
	}
	switch {
	case q == record.Quota{}:
		if err := t.dropQuota(dir.Id); err != nil {
			return nil, err
		}
	case had == record.Quota{}:
		if s.Quotas >= MaxQuotas {
			return nil, fail(moraine.TooLarge, "set quota", dir.Id.String(), "there are %d quotas, the most there may be", MaxQuotas)
		}
		s.Quotas++
		t.putUsageState(s)
		fallthrough
	default:
		t.put(t.k.quota(dir.Id), q.Encode())
	}
	return done(), nil
}

// dropQuota takes a directory's quota away, if it has one.
func (t *tx) dropQuota(dir moraine.InodeID) error {
	s, err := t.usageState()
	if err != nil || s.Quotas == 0 {
		return err
	}
	q, err := t.quota(dir)
	if err != nil || q == (record.Quota{}) {
		return err
	}
	s.Quotas--
	t.putUsageState(s)
	t.del(t.k.quota(dir))
	return nil
}

// readUsage answers what is below a directory, or below the one of a file, and
// how much more may come there under all quotas above.
func (v *view) readUsage(sc scope, op *wire.GetUsage) (*wire.MetaResponse, error) {
	i, err := v.named(sc, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	s, err := v.usageState()
	if err != nil {
		return nil, err
	}
	if s.Live == 0 {
		return nil, fail(moraine.Unavailable, "usage", i.Id.String(), "nothing is counted yet: the cluster's feature level has none, or the first count is under way (moraine job ls)")
	}
	at := i.Id
	if i.Typ != record.TypeDirectory {
		if at, err = v.parentIn(sc, i); err != nil {
			return nil, err
		}
	}
	r := &wire.UsageReply{}
	if r.Usage, err = v.usageToWire(s, at); err != nil {
		return nil, err
	}
	if s.Quotas > 0 {
		err = v.room(sc, s, at, r)
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Usage{Usage: r}}, err
}

// room finds what may still be added at a directory, and the nearest directory
// with a quota. One outside the caller's scope counts, and is not named.
func (v *view) room(sc scope, s *record.UsageState, at moraine.InodeID, r *wire.UsageReply) error {
	r.RoomBytes, r.RoomInodes = maxQuotaBytes, maxQuotaBytes
	inside := true
	for depth := 0; at != 0 && depth <= maxDepth; depth++ {
		dir, err := v.inode(at)
		if err != nil {
			return err
		}
		q, err := v.quota(at)
		if err != nil {
			return err
		}
		if q != (record.Quota{}) {
			u, err := v.usage(usageKey{s.Live, at})
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
				if r.Quota, err = v.usageToWire(s, at); err != nil {
					return err
				}
				if r.Quota.Path, _, err = v.pathIn(sc, dir); err != nil {
					return err
				}
			}
		}
		inside = inside && at != sc.root
		at = dir.Parent
	}
	return nil
}

// pathIn returns the path of a directory as the scope's session writes it; false
// where it has none.
func (v *view) pathIn(sc scope, dir *record.Inode) (string, bool, error) {
	path, ok, err := v.pathOf(dir)
	if err != nil || !ok || sc.root == v.k.top() {
		return "/" + path, ok, err
	}
	root, err := v.inode(sc.root)
	if err != nil {
		return "", false, err
	}
	above, ok, err := v.pathOf(root)
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, above), "/"), ok, err
}

func (v *view) usageToWire(s *record.UsageState, dir moraine.InodeID) (*wire.Usage, error) {
	u, err := v.usage(usageKey{s.Live, dir})
	if err != nil {
		return nil, err
	}
	q, err := v.quota(dir)
	return &wire.Usage{Inode: uint64(dir), Bytes: uint64(max(u.Bytes, 0)), Inodes: uint64(max(u.Inodes, 0)), QuotaBytes: q.Bytes, QuotaInodes: q.Inodes}, err
}

// readQuotas lists the directories with quotas in the caller's scope, in order
// of number, with their paths. Quotas outside the scope leave no trace in the answer: it
// goes on to the next one inside, or to the end of the table, which MaxQuotas bounds.
func (v *view) readQuotas(sc scope, op *wire.ListQuotas) (*wire.MetaResponse, error) {
	s, err := v.usageState()
	if err != nil {
		return nil, err
	}
	reply := &wire.QuotasReply{}
	limit := listLimit(op.GetLimit())
	inside := map[moraine.InodeID]bool{sc.root: true} // by directory, as far as is known
	var failed error
	lo := v.k.quota(moraine.InodeID(op.GetAfter() + 1))
	err = v.r.Scan(lo, prefixEnd(v.k.table(record.TabQuota)), func(key, _ []byte) bool {
		var u *wire.Usage
		id := moraine.InodeID(binary.BigEndian.Uint64(key[3:]))
		if u, failed = v.quotaIn(sc, s, id, inside); failed != nil || u == nil {
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

// quotaIn is what is told of a directory with a quota; nil where it was removed, or is
// outside the scope. inside remembers which directories are in it.
func (v *view) quotaIn(sc scope, s *record.UsageState, id moraine.InodeID, inside map[moraine.InodeID]bool) (*wire.Usage, error) {
	if sc.root != v.k.top() {
		if ok, err := v.belowKnown(id, inside); err != nil || !ok {
			return nil, err
		}
	}
	dir, err := v.inode(id)
	if err != nil {
		return nil, damaged(err)
	}
	path, ok, err := v.pathIn(sc, dir)
	if err != nil || !ok {
		return nil, err
	}
	u, err := v.usageToWire(s, id)
	if err != nil {
		return nil, err
	}
	u.Path = path
	return u, nil
}

// belowKnown reports whether a directory is below one that is known to be inside, and
// remembers it of all directories on the way.
func (v *view) belowKnown(at moraine.InodeID, known map[moraine.InodeID]bool) (bool, error) {
	var way []moraine.InodeID
	in := false
	for at != 0 && len(way) <= maxDepth {
		if is, ok := known[at]; ok {
			in = is
			break
		}
		way = append(way, at)
		dir, err := v.inode(at)
		if err != nil {
			return false, damaged(err)
		}
		at = dir.Parent
	}
	for _, id := range way {
		known[id] = in
	}
	return in, nil
}
