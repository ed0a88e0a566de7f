package repair

import (
	"cmp"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// sweep is a pass through all files in progress. Changes meanwhile are seen in this pass or the
// next one.
type sweep struct {
	rw      *Rewriter
	settled moraine.StripeID
	after   moraine.InodeID   // inodes up to this one are in files, or done
	files   []moraine.InodeID // files left; the first is in progress
	last    bool              // there are no files after these
	from    int64             // offset in the file in progress
	parted  bool              // part of that file was judged
	named   map[moraine.StripeID]content.Named
	// shared has what each of several files refers to in a stripe with further references, and
	// sharedParts their number. together is what must be rewritten of stripes with all references
	// seen.
	shared      map[moraine.StripeID][]found
	sharedParts int
	together    []found
	packs       packer
	unjudged    uint64
	tasks       []rewriteTask
	ended       bool
}

func newSweep(rw *Rewriter, settled moraine.StripeID) *sweep {
	return &sweep{rw: rw, settled: settled, named: make(map[moraine.StripeID]content.Named), shared: make(map[moraine.StripeID][]found),
		packs: packer{groups: make(map[packGroup]*packing), places: make(map[moraine.InodeID]packPlace), scopes: rw.leader.Scopes()}}
}

// found is what a file refers to in a stripe.
type found struct {
	file  moraine.InodeID
	id    moraine.StripeID
	named content.Named
	whole bool  // it is the file's whole content
	lose  uint8 // chunks that the stripe may lose
}

// skip abandons the file in progress because its count is incomplete. The counts of its stripes in
// other files are then incomplete too, so that these stripes are not rewritten.
func (s *sweep) skip() {
	clear(s.named)
	s.tasks = nil
	if s.from, s.parted = 0, false; len(s.files) > 0 {
		s.files = s.files[1:]
	}
}

// look inspects some more records.
func (s *sweep) look(r kvtx.Reader) error {
	m := s.rw.Machine
	for left := rewriteLooks; left > 0; {
		if len(s.files) == 0 {
			if s.last {
				s.end()
				return nil
			}
			files, last, err := content.Rewritables(m.View(r), s.after, rewriteInodes)
			if err != nil {
				return err
			}
			s.files, s.after, s.last = files, last, last == 0
			left -= rewriteInodes
			continue
		}
		n, next, err := content.NameStripes(m.View(r), s.files[0], s.from, left, s.named)
		if err != nil {
			return err
		}
		left -= n + 1
		if s.from = next; next >= 0 && len(s.named) < rewriteWindow {
			continue
		}
		left -= len(s.named)
		if err := s.judge(r, s.files[0], next < 0 && !s.parted); err != nil {
			return err
		}
		if clear(s.named); next < 0 {
			s.files, s.from, s.parted = s.files[1:], 0, false
		} else {
			s.parted = true
		}
	}
	return nil
}

// judge chooses the stripes of a file that must be rewritten; whole says that they are its whole
// content. A stripe with references from other files is judged when all were seen.
func (s *sweep) judge(r kvtx.Reader, file moraine.InodeID, whole bool) error {
	var chosen, small []found
	for id, named := range s.named {
		record, err := fleet.StripeByID(s.rw.Machine.View(r), id)
		if err != nil {
			return err
		}
		if record == nil {
			continue
		}
		f := found{file: file, id: id, named: named, whole: whole && len(s.named) == 1}
		if record.RefCount != named.Tables {
			if err := s.share(r, record, f); err != nil {
				return err
			}
			continue
		}
		if ok, err := s.choose(r, record, named); err != nil {
			return err
		} else if ok {
			chosen = append(chosen, f)
		} else if record.Scheme.IsCopies() && record.Length <= rewriteSmall && settled(record, s.settled) {
			f.lose = record.Scheme.M
			small = append(small, f)
		}
	}
	s.order(chosen, 0)
	if whole && len(small) == len(s.named) && len(small) < rewriteFewer {
		return s.offerSmall(r, file, small)
	}
	return s.pack(r, small)
}

// offerSmall offers a file for packing whose whole content is in a few small stripes, or in the
// metadata.
func (s *sweep) offerSmall(r kvtx.Reader, file moraine.InodeID, small []found) error {
	if len(small) == 0 {
		_, err := s.offer(r, file, 0, 0, nil)
		return err
	}
	whole, err := s.unqueued(r, small)
	if err != nil || len(whole) < len(small) ||
		slices.ContainsFunc(small, func(f found) bool { return f.lose != small[0].lose }) {
		return err
	}
	var bytes int64
	for _, f := range small {
		bytes += f.named.Bytes
	}
	_, err = s.offer(r, file, bytes, small[0].lose, nil)
	return err
}

// unqueued returns the small stripes that do not wait for repair.
func (s *sweep) unqueued(r kvtx.Reader, small []found) (whole []found, err error) {
	for _, f := range small {
		queued, err := fleet.Queued(s.rw.Machine.View(r), f.id)
		if err != nil {
			return nil, err
		}
		if !queued {
			whole = append(whole, f)
		}
	}
	return whole, nil
}

// pack queues small stripes of a file to be merged, if few result.
func (s *sweep) pack(r kvtx.Reader, small []found) error {
	if len(small) < rewriteFewer {
		return nil
	}
	whole, err := s.unqueued(r, small)
	if err != nil {
		return err
	}
	slices.SortFunc(whole, inOrder)
	for len(whole) > 0 {
		n := min(len(whole), content.MaxRewriteStripes)
		extents := 0
		for _, f := range whole[:n] {
			extents += f.named.Extents
		}
		if (1+extents/rewriteRuns)*rewriteFewer <= n {
			s.order(whole[:n], rewriteFewer/2)
		}
		whole = whole[n:]
	}
	return nil
}

// inOrder sorts by file, and within a file by offset.
func inOrder(a, b found) int {
	return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.named.From, b.named.From), cmp.Compare(a.id, b.id))
}

// share collects the references to a stripe that several files, or parts of a file, share. It
// judges the stripe once it has seen all of them. Packed files have inode numbers close together,
// so that few stripes wait at a time.
func (s *sweep) share(r kvtx.Reader, record *moraine.Stripe, f found) error {
	parts, known := s.shared[record.ID]
	if !known && len(s.shared) == rewriteShared || record.RefCount > rewriteParts || len(parts) == rewriteParts || s.sharedParts == rewriteSharedParts {
		s.unjudged++
		return nil
	}
	parts = append(parts, f)
	var all content.Named
	for _, f := range parts {
		all.Bytes, all.Tables = all.Bytes+f.named.Bytes, all.Tables+f.named.Tables
	}
	if all.Tables < record.RefCount {
		s.shared[record.ID], s.sharedParts = parts, s.sharedParts+1
		return nil
	}
	delete(s.shared, record.ID)
	s.sharedParts -= len(parts) - 1
	if all.Tables > record.RefCount { // one reference has gone since
		s.unjudged++
		return nil
	}
	ok, err := s.choose(r, record, all)
	if err != nil || !ok {
		return err
	}
	return s.leaveShared(r, record, parts)
}

// end creates the remaining tasks after all files were seen.
func (s *sweep) end() {
	s.packRest()
	s.order(s.together, 0)
	s.together = nil
	s.rw.leave(s.unjudged + uint64(len(s.shared)))
	s.ended = true
}

// choose reports whether a stripe with all references seen must be rewritten.
func (s *sweep) choose(r kvtx.Reader, record *moraine.Stripe, named content.Named) (bool, error) {
	s.rw.count(record, named)
	if !settled(record, s.settled) || !mostlyDead(record, named, s.rw.cfg.RewriteLive) {
		return false, nil
	}
	// A stripe that waits for repair may be lost: repair goes first.
	queued, err := fleet.Queued(s.rw.Machine.View(r), record.ID)
	return !queued, err
}

// order makes tasks of the chosen parts, file by file and in file order, so that adjacent data
// shares a stripe. The tasks get fewer.
func (s *sweep) order(chosen []found, fewer uint32) {
	slices.SortFunc(chosen, inOrder)
	for len(chosen) > 0 {
		t := rewriteTask{inode: chosen[0].file, task: &wire.RewriteTask{Offset: uint64(chosen[0].named.From), Fewer: fewer}}
		for len(chosen) > 0 && chosen[0].file == t.inode && len(t.task.Stripes) < content.MaxRewriteStripes &&
			(t.bytes == 0 || t.bytes+chosen[0].named.Bytes <= rewriteJobBytes) {
			c := chosen[0]
			t.task.Stripes, t.bytes = append(t.task.Stripes, uint64(c.id)), t.bytes+c.named.Bytes
			t.task.End = max(t.task.End, uint64(c.named.To))
			chosen = chosen[1:]
		}
		s.tasks = append(s.tasks, t)
	}
}

// mostlyDead reports whether a stripe is worth rewriting: at most live percent of it is in use.
func mostlyDead(s *moraine.Stripe, named content.Named, live int) bool {
	return s.Length-named.Bytes >= rewriteLeast && named.Bytes*100 <= s.Length*int64(live)
}

// settled reports whether a stripe is as old as last and durable on its devices. Stripes that are
// only in memory are left alone, because their level is about to change.
func settled(s *moraine.Stripe, last moraine.StripeID) bool {
	return s.ID <= last && !slices.ContainsFunc(s.Chunks, func(c moraine.ChunkState) bool { return c.Level != moraine.NVMe })
}
