package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// A file may have more extents than one command inspects. The leader finds
// losses behind the first extents below nvme. It scans such files without log
// entries and names a place; the state then inspects that place itself. A lost
// file stays lost until that place is no longer lost and a complete inspection,
// over as many commands as needed, found nothing else. The file's row has its
// progress. A file about which nothing changes therefore costs no entries,
// whatever its size and however long its bytes stay in memory.

// FilePlace is an offset in a file.
type FilePlace struct {
	Inode  moraine.InodeID
	Offset int64
}

// lostLook is the result of an inspection for lost bytes.
type lostLook struct {
	found bool
	at    int64 // offset of the first lost extent, if one was found
	upTo  int64 // end of the last inspected extent
	seen  int   // number of inspected extents
	end   bool  // the file has no more extents
}

// lookLost inspects at most limit extents of a file from an offset for the first lost one.
func lookLost(v *kvtx.View, i *record.Inode, from int64, limit int) (l lostLook, err error) {
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

// gaugeLost continues the inspection of a file recorded as lost of which nothing up to seen is
// lost. It inspects limit more extents if the recorded place is no longer lost.
func gaugeLost(v *kvtx.View, g *gauged, seen int64, limit int) error {
	g.level = record.LevelLost
	if g.row.Found {
		l, err := lookLost(v, g.file, g.row.Mark, 1)
		if err != nil || l.found {
			return err
		}
		g.row.Mark, g.row.Found = 0, false // start at the beginning
	}
	l, err := lookLost(v, g.file, max(g.row.Mark, seen), limit)
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

// loseLevel records that a file is lost, if it is at level memory and the named place is lost.
func loseLevel(t *kvtx.Tx, at FilePlace) error {
	row, i, err := inMemoryFile(&t.View, at.Inode)
	if err != nil || i == nil {
		return err
	}
	l, err := lookLost(&t.View, i, at.Offset, 1)
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

// inMemoryFile returns a file with a row at level memory; nil if it has none.
func inMemoryFile(v *kvtx.View, id moraine.InodeID) (row record.UnsafeFile, i *record.Inode, err error) {
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

// FindLost searches files at level memory for lost bytes, about limit extents from a place on. It
// returns one lost place of each such file, at most MaxRaised, and where to continue: the zero
// place after all files.
func FindLost(v *kvtx.View, from FilePlace, limit int) (lost []FilePlace, next FilePlace, err error) {
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
		row, i, err := inMemoryFile(v, id)
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
		l, err := lookLost(v, i, start, max(left, 1))
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
