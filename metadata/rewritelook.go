package metadata

import (
	"cmp"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport/wire"
)

// sweep is a look through all files, under way. It goes on from where it was: what changes
// meanwhile is seen, or will be the next time.
type sweep struct {
	l       *leader
	settled moraine.StripeID
	after   moraine.InodeID   // inodes up to it are in files, or done
	files   []moraine.InodeID // the first one is under way
	last    bool              // there are no files but these
	from    int64             // offset in the file under way
	named   map[moraine.StripeID]state.Named
	// shared is what each of several files names of a stripe, and sharedIDs the stripes that
	// have yet to be judged; together are those of them that were chosen.
	shared    map[moraine.StripeID][]found
	sharedIDs []moraine.StripeID
	together  []found
	untold    uint64
	tasks     []rewriteTask
	ended     bool
}

// found is what a file names of a stripe.
type found struct {
	file  moraine.InodeID
	id    moraine.StripeID
	named state.Named
}

// skip leaves the file under way: what was counted of it is half. What another file names of
// the same stripes is then not all, so that those are left.
func (s *sweep) skip() {
	clear(s.named)
	s.tasks = nil
	if s.from = 0; len(s.files) > 0 {
		s.files = s.files[1:]
	}
}

// look looks at some more records.
func (s *sweep) look(r state.Reader) error {
	m := s.l.machine
	for left := rewriteLooks; left > 0; {
		if len(s.files) == 0 {
			if s.last {
				return s.judgeShared(r)
			}
			files, last, err := m.Rewritables(r, s.after, rewriteInodes)
			if err != nil {
				return err
			}
			s.files, s.after, s.last = files, last, last == 0
			left -= rewriteInodes
			continue
		}
		n, next, err := m.NameStripes(r, s.files[0], s.from, left, s.named)
		if err != nil {
			return err
		}
		left -= n + 1
		if s.from = next; next >= 0 && len(s.named) < rewriteWindow {
			continue
		}
		left -= len(s.named)
		if err := s.judge(r, s.files[0]); err != nil {
			return err
		}
		if clear(s.named); next < 0 {
			s.files, s.from = s.files[1:], 0
		}
	}
	return nil
}

// judge chooses those of the stripes that a file names which are to be rewritten. What other
// files name too is judged when all were seen.
func (s *sweep) judge(r state.Reader, file moraine.InodeID) error {
	var chosen, small []found
	for id, named := range s.named {
		record, err := s.l.machine.StripeByID(r, id)
		if err != nil {
			return err
		}
		if record == nil {
			continue
		}
		if record.RefCount != named.Tables {
			s.share(record, found{file: file, id: id, named: named})
			continue
		}
		if ok, err := s.choose(r, record, named); err != nil {
			return err
		} else if ok {
			chosen = append(chosen, found{file: file, id: id, named: named})
		} else if record.Scheme.IsCopies() && record.Length <= rewriteSmall && settled(record, s.settled) {
			small = append(small, found{file: file, id: id, named: named})
		}
	}
	s.order(chosen, 0)
	return s.pack(r, small)
}

// pack has small stripes of a file put together, where that makes them few.
func (s *sweep) pack(r state.Reader, small []found) error {
	if len(small) < rewriteFewer {
		return nil
	}
	whole := small[:0]
	for _, f := range small {
		queued, err := s.l.machine.Queued(r, f.id)
		if err != nil {
			return err
		}
		if !queued {
			whole = append(whole, f)
		}
	}
	slices.SortFunc(whole, inOrder)
	for len(whole) > 0 {
		n := min(len(whole), state.MaxRewriteStripes)
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

// inOrder sorts by files, and within each in the order of the file.
func inOrder(a, b found) int {
	return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.named.From, b.named.From), cmp.Compare(a.id, b.id))
}

// share keeps what a file, or a part of one, names of a stripe that has other references.
func (s *sweep) share(record *moraine.Stripe, f found) {
	parts, known := s.shared[record.ID]
	if !known && len(s.shared) == rewriteShared || record.RefCount > rewriteParts || len(parts) == rewriteParts {
		s.untold++
		return
	}
	if !known {
		s.sharedIDs = append(s.sharedIDs, record.ID)
	}
	s.shared[record.ID] = append(parts, f)
}

// judgeShared goes on to judge, once all files were seen, the stripes that several name: by
// all of them together, and if one is to be rewritten then in each.
func (s *sweep) judgeShared(r state.Reader) error {
	for left := rewriteLooks; left > 0 && len(s.sharedIDs) > 0; left-- {
		id := s.sharedIDs[0]
		s.sharedIDs = s.sharedIDs[1:]
		record, err := s.l.machine.StripeByID(r, id)
		if err != nil {
			return err
		}
		if record == nil {
			continue
		}
		var all state.Named
		for _, f := range s.shared[id] {
			all.Bytes, all.Tables = all.Bytes+f.named.Bytes, all.Tables+f.named.Tables
		}
		if record.RefCount != all.Tables {
			s.untold++
			continue
		}
		if ok, err := s.choose(r, record, all); err != nil {
			return err
		} else if ok {
			s.together = append(s.together, s.shared[id]...)
		}
	}
	if len(s.sharedIDs) > 0 {
		return nil
	}
	s.order(s.together, 0)
	s.l.rewriting.leave(s.untold)
	s.ended = true
	return nil
}

// choose reports whether a stripe of which all that is named was seen is to be rewritten.
func (s *sweep) choose(r state.Reader, record *moraine.Stripe, named state.Named) (bool, error) {
	s.l.rewriting.count(record, named)
	if !settled(record, s.settled) || !mostlyDead(record, named, s.l.cfg.RewriteLive) {
		return false, nil
	}
	// What waits for repair may be lost for all that is known: that goes first.
	queued, err := s.l.machine.Queued(r, record.ID)
	return !queued, err
}

// order makes tasks of what was chosen, file by file and each in the order of the file, so
// that what comes to lie in one stripe is near each other. fewer is that of the tasks.
func (s *sweep) order(chosen []found, fewer uint32) {
	slices.SortFunc(chosen, inOrder)
	for len(chosen) > 0 {
		t := rewriteTask{inode: chosen[0].file, task: &wire.RewriteTask{Offset: uint64(chosen[0].named.From), Fewer: fewer}}
		for len(chosen) > 0 && chosen[0].file == t.inode && len(t.task.Stripes) < state.MaxRewriteStripes &&
			(t.bytes == 0 || t.bytes+chosen[0].named.Bytes <= rewriteJobBytes) {
			c := chosen[0]
			t.task.Stripes, t.bytes = append(t.task.Stripes, uint64(c.id)), t.bytes+c.named.Bytes
			t.task.End = max(t.task.End, uint64(c.named.To))
			chosen = chosen[1:]
		}
		s.tasks = append(s.tasks, t)
	}
}

// mostlyDead reports whether a stripe is worth to be rewritten: at most so many hundredths
// of it are named.
func mostlyDead(s *moraine.Stripe, named state.Named, live int) bool {
	return s.Length-named.Bytes >= rewriteLeast && named.Bytes*100 <= s.Length*int64(live)
}

// settled reports whether a stripe is as old as was given, and on its devices. The level of
// what is in memory alone is being settled: that is left alone.
func settled(s *moraine.Stripe, last moraine.StripeID) bool {
	return s.ID <= last && !slices.ContainsFunc(s.Chunks, func(c moraine.ChunkState) bool { return c.Level != moraine.NVMe })
}
