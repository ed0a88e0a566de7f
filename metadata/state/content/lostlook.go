package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// A file may have more extents than one command looks at. What of it is lost behind the
// first ones that are below nvme is found by the leader, which goes through such files
// without a word in the log, and names the place; the state looks there itself. A file that
// is lost stays so until what was found is not lost any more and a look from its beginning
// to its end, over as many commands as it takes, has found nothing else: how far that came
// is in the file's row. So a file about which nothing changes costs no entry, whatever it
// has, and however long its bytes are in memory.

// FilePlace is an offset in a file.
type FilePlace struct {
	Inode  moraine.InodeID
	Offset int64
}

// lostLook is what a look for lost bytes found.
type lostLook struct {
	found bool
	at    int64 // of the first extent that is lost, where one was found
	upTo  int64 // the end of the last extent that was looked at
	seen  int   // extents looked at
	end   bool  // there are no more
}

// LookLost looks at no more than limit extents of a file, from an offset on, for the first
// one that is lost.
func LookLost(v *kvtx.View, i *record.Inode, from int64, limit int) (l lostLook, err error) {
	exts, err := layout.ExtentsOf(v, i, from, limit)
	if err != nil {
		return l, err
	}
	l.upTo, l.end = from, len(exts) < limit
	for _, e := range exts {
		fate, err := FateOf(v, e)
		if err != nil {
			return l, err
		}
		l.seen, l.upTo = l.seen+1, e.End()
		if fate == record.LevelLost {
			l.found, l.at, l.end = true, e.Offset, false
			break
		}
	}
	return l, nil
}

// GaugeLost goes on with the look at a file that is recorded as lost, of which nothing is
// lost up to seen: at limit extents more, where what was found is not lost any more.
func GaugeLost(v *kvtx.View, g *gauged, seen int64, limit int) error {
	g.level = record.LevelLost
	if g.row.Found {
		l, err := LookLost(v, g.file, g.row.Mark, 1)
		if err != nil || l.found {
			return err
		}
		g.row.Mark, g.row.Found = 0, false // from the beginning
	}
	l, err := LookLost(v, g.file, max(g.row.Mark, seen), limit)
	if err != nil {
		return err
	}
	g.looked += l.seen
	switch {
	case l.found:
		g.row.Mark, g.row.Found = l.at, true
	case l.end:
		g.level, g.row.Mark = moraine.Memory, 0
	default:
		g.row.Mark = l.upTo
	}
	return nil
}

// LoseLevel records that a file is lost, if it is in memory and what is at a place is lost.
func LoseLevel(t *kvtx.Tx, at FilePlace) error {
	row, i, err := InMemoryFile(&t.View, at.Inode)
	if err != nil || i == nil {
		return err
	}
	l, err := LookLost(&t.View, i, at.Offset, 1)
	if err != nil || !l.found {
		return err
	}
	if row.Generation != i.Generation {
		row = record.UnsafeFile{Generation: i.Generation}
	}
	row.Mark, row.Found = l.at, true
	t.Put(t.K.UnsafeFile(i.Id), row.Encode())
	i.Level = record.LevelLost
	t.LossChanged()
	tree.PutInode(t, i)
	return nil
}

// InMemoryFile returns a file with a row that is at level memory; nil where it is not.
func InMemoryFile(v *kvtx.View, id moraine.InodeID) (row record.UnsafeFile, i *record.Inode, err error) {
	b, ok, err := v.R.Get(v.K.UnsafeFile(id))
	if err != nil || !ok {
		return row, nil, err
	}
	if err := row.Decode(b); err != nil {
		return row, nil, err
	}
	i, err = tree.ReadInode(v, id)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return row, nil, nil
	}
	if err != nil || i.Content == 0 || i.Level != moraine.Memory {
		return row, nil, err
	}
	return row, i, nil
}

// FindLost looks for what is lost of files that are at level memory, at about limit extents
// from a place on, and returns a lost place of each such file, MaxRaised at most, and where
// to go on: the zero place when it has seen all files.
func FindLost(r *kvtx.View, from FilePlace, limit int) (lost []FilePlace, next FilePlace, err error) {
	v := r
	rows, err := UnsafeFiles(v, max(from.Inode, 1)-1, limit)
	if err != nil {
		return nil, next, err
	}
	left := limit
	for _, id := range rows {
		if left <= 0 || len(lost) == MaxRaised {
			return lost, FilePlace{Inode: id}, nil
		}
		left--
		row, i, err := InMemoryFile(v, id)
		if err != nil {
			return nil, next, err
		}
		if i == nil {
			continue
		}
		start := int64(0)
		if row.Generation == i.Generation {
			start = row.UpTo
		}
		if id == from.Inode {
			start = max(start, from.Offset)
		}
		l, err := LookLost(v, i, start, max(left, 1))
		if err != nil {
			return nil, next, err
		}
		left -= l.seen
		switch {
		case l.found:
			lost = append(lost, FilePlace{id, l.at})
		case !l.end:
			return lost, FilePlace{id, l.upTo}, nil
		}
	}
	if len(rows) == limit {
		next.Inode = rows[len(rows)-1] + 1
	}
	return lost, next, nil
}
