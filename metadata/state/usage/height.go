package usage

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// The cost of a command grows with the depth of its target, since each change is counted in all
// directories above. So no inode is created below more than MaxDepth directories, and no directory
// is moved to where its content would be deeper. To check that without a walk, a record for each
// directory bounds the height of the tree below it. When a directory gets a parent, the heights
// above are raised if necessary. When it loses its parent, they are lowered as far as a short
// inspection can show. A directory without subdirectories has height 0.

// maxHeightLook bounds the entries that one command inspects to lower heights.
const maxHeightLook = 64

// updateHeights updates the heights of directories above those that the command moved.
func updateHeights(t *kvtx.Tx, changes []seatChange) error {
	for n := range changes {
		c := &changes[n]
		if c.moved() && c.after.there && c.after.typ == record.TypeDirectory && c.after.parent != 0 {
			if err := raise(t, c); err != nil {
				return err
			}
		}
	}
	looks := maxHeightLook
	for n := range changes {
		c := &changes[n]
		if c.moved() && c.before.there && c.before.typ == record.TypeDirectory && c.before.parent != 0 {
			if err := lower(t, c.before.parent, &looks); err != nil {
				return err
			}
		}
	}
	return nil
}

// raise raises the heights above a directory that got a parent, and refuses a tree that would be
// too deep. A tree that does not get deeper than before is allowed.
func raise(t *kvtx.Tx, c *seatChange) error {
	moved, err := Height(&t.View, c.id)
	if err != nil {
		return err
	}
	level, need, enough := 0, moved+1, false
	for at := c.after.parent; at != 0; level++ {
		if !enough {
			have, err := Height(&t.View, at)
			if err != nil {
				return err
			}
			// Those above are already higher, and their heights include this one.
			if enough = have >= need; !enough {
				PutHeight(t, at, need)
			}
		}
		need++
		if at, err = parent(t, at); err != nil {
			return err
		}
	}
	if level+int(moved) <= kvtx.MaxDepth+1 {
		return nil
	}
	if c.before.there && c.before.parent != 0 {
		was, err := Level(t, c.before.parent)
		if err != nil || level <= was+1 {
			return err
		}
	}
	return tooDeep(c.id, moved)
}

func tooDeep(id moraine.InodeID, height uint32) error {
	return kvtx.Fail(moraine.TooLarge, "usage", id.String(), "the directory would be more than %d directories deep, with the %d levels reserved below it: create it higher up",
		kvtx.MaxDepth, height)
}

// FitsBelow fails if a directory of that height would be too deep in another one.
func FitsBelow(t *kvtx.Tx, dir, id moraine.InodeID) error {
	height, err := Height(&t.View, id)
	if err != nil {
		return err
	}
	level, err := Level(t, dir)
	if err == nil && level+1+int(height) > kvtx.MaxDepth+1 {
		err = tooDeep(id, height)
	}
	return err
}

// Level returns the number of directories above one.
func Level(t *kvtx.Tx, at moraine.InodeID) (level int, err error) {
	for {
		if at, err = parent(t, at); err != nil || at == 0 {
			return level, err
		}
		level++
	}
}

// parent returns a directory's parent as the command has it; 0 for none.
func parent(t *kvtx.Tx, dir moraine.InodeID) (moraine.InodeID, error) {
	if i := t.Inodes[dir]; i != nil {
		return i.Parent, nil
	}
	b, ok, err := t.Get(t.K.Inode(dir))
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, badSeat(dir, errors.New("an inode is below the directory, which has no record"))
	}
	s, err := seatOf(b)
	if err != nil {
		return 0, badSeat(dir, err)
	}
	return s.parent, nil
}

// lower lowers the height of a directory that lost a subdirectory, and of those above it. It
// inspects their entries to find the heights, and leaves a height as it is where that takes too
// long.
func lower(t *kvtx.Tx, at moraine.InodeID, looks *int) error {
	for at != 0 {
		have, err := Height(&t.View, at)
		if err != nil || have == 0 {
			return err
		}
		dir, err := tree.Ancestor(&t.View, at)
		if err != nil || dir.Nlink == 0 { // it is being removed
			return err
		}
		height, known, err := measureHeight(t, dir, have, looks)
		if err != nil || !known || height >= have {
			return err
		}
		PutHeight(t, at, height)
		at = dir.Parent
	}
	return nil
}

// measureHeight returns a directory's height by its entries; known is false if that takes too long.
// It may stop early if the result is not below the recorded height.
func measureHeight(t *kvtx.Tx, dir *record.Inode, have uint32, looks *int) (height uint32, known bool, err error) {
	if dir.Nlink == 2 {
		return 0, true, nil
	}
	if *looks == 0 {
		return 0, false, nil
	}
	_, entries, err := tree.ListDir(&t.View, dir.Id, "", *looks)
	if err != nil {
		return 0, false, err
	}
	for _, e := range entries {
		*looks--
		if e.Typ != record.TypeDirectory {
			continue
		}
		below, err := Height(&t.View, e.Inode)
		if err != nil {
			return 0, false, err
		}
		if height = max(height, below+1); height >= have {
			return height, true, nil
		}
	}
	return height, uint64(len(entries)) == dir.Entries, nil
}

// Height returns the recorded bound on the levels of directories below one.
func Height(v *kvtx.View, dir moraine.InodeID) (uint32, error) {
	b, ok, err := v.R.Get(v.K.Height(dir))
	if err != nil || !ok {
		return 0, err
	}
	return record.DecodeHeight(b)
}

// PutHeight records a directory's height.
func PutHeight(t *kvtx.Tx, dir moraine.InodeID, height uint32) {
	if height == 0 {
		t.Del(t.K.Height(dir))
		return
	}
	t.Put(t.K.Height(dir), record.EncodeHeight(height))
}

// DropHeight deletes the height of a removed directory.
func DropHeight(t *kvtx.Tx, dir moraine.InodeID) error {
	have, err := Height(&t.View, dir)
	if err == nil && have != 0 {
		PutHeight(t, dir, 0)
	}
	return err
}
