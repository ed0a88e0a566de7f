package names

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
)

// A checkpoint is immutable. Its directory is sealed when it is made, and its
// files by the entry that adds them. The links of its run are sealed while they
// point to it. Nothing that a reader sees of a sealed inode may change: type,
// mode, owner, names, times, size, generation, attributes, and the entries of a
// directory.
//
// No handler checks this itself. At the end of each command, the records of sealed inodes that it
// wrote are compared with their previous versions. The check therefore also covers requests added
// later. It ignores where the bytes are, which flush, evict, stage, repair, rewrite and pack
// change.
//
// Handlers of checkpoints name the sealed inodes that they change (Open). If a checkpoint was
// removed, its directory is no longer sealed; its files may then be unlinked, but not changed.

// Open permits the command to change a sealed inode.
func Open(t *kvtx.Tx, i *record.Inode) { t.Opened = append(t.Opened, i.Id) }

// Unseal ends the seal of a checkpoint's directory, so that its files may be unlinked.
func Unseal(t *kvtx.Tx, dir *record.Inode) {
	Open(t, dir)
	dir.Sealed, dir.Step = false, record.StepID{}
}

// sealedRecord reports whether an inode's record has the sealed flag, without decoding it.
func sealedRecord(b []byte) bool {
	if len(b) < 4 || b[2]&0x80 == 0 {
		return false
	}
	flags, _ := binary.Uvarint(b[2:])
	return flags&record.InodeSealed != 0
}

// LevelChange is a file of a checkpoint whose bytes have another level after the command.
type LevelChange struct {
	Dir      moraine.InodeID // of the checkpoint
	Was, Now moraine.Level
}

// CheckSeals fails with Immutable if the command changed a sealed inode. It returns the sealed files
// whose level changed, which is no change of what readers see.
func CheckSeals(t *kvtx.Tx) (moved []LevelChange, err error) {
	for _, cell := range t.Order {
		if len(cell.Key) != 11 || cell.Key[2] != record.TabInode || cell.Want.Fresh {
			continue
		}
		if err := t.B.Fill(cell); err != nil {
			return nil, err
		}
		if !cell.Exists || !sealedRecord(cell.Value) {
			continue
		}
		was := &record.Inode{Id: moraine.InodeID(binary.BigEndian.Uint64([]byte(cell.Key[3:])))}
		if err := was.Decode(cell.Value); err != nil {
			return nil, err
		}
		var now *record.Inode
		if w := cell.Want; w.Exists {
			now = &record.Inode{Id: was.Id}
			if err := now.Decode(w.Value); err != nil {
				return nil, err
			}
		}
		if !t.OpenAll {
			if err := checkSeal(t, was, now); err != nil {
				return nil, err
			}
		}
		if now != nil && was.Typ == record.TypeFile && was.Parent != 0 && was.Safety() != now.Safety() {
			moved = append(moved, LevelChange{was.Parent, was.Safety(), now.Safety()})
		}
	}
	return moved, nil
}

// checkSeal compares a sealed inode before and after the command; now is nil if the inode is gone.
func checkSeal(t *kvtx.Tx, was, now *record.Inode) error {
	if slices.Contains(t.Opened, was.Id) {
		return nil
	}
	if gone := now == nil || now.Nlink == 0; gone && was.Typ == record.TypeFile {
		if ok, err := mayUnlink(t, was); ok || err != nil {
			return err
		}
		return tree.Immutable(t, was)
	}
	if now == nil || visible(was) != visible(now) {
		return tree.Immutable(t, was)
	}
	return nil
}

// mayUnlink reports whether a sealed file may lose its name: its checkpoint was removed and its
// directory is not sealed.
func mayUnlink(t *kvtx.Tx, file *record.Inode) (bool, error) {
	if file.Parent == 0 {
		return true, nil
	}
	b, ok, err := t.Get(t.K.Inode(file.Parent))
	return !ok || !sealedRecord(b), err
}

// seen is the part of an inode that readers see.
type seen struct {
	typ                       uint8
	mode, uid, gid, nlink     uint32
	parent                    moraine.InodeID
	manyLinks, xattrs, sealed bool
	owner                     moraine.SessionID
	mtime, ctime              int64
	name, target              string
	entries                   uint64
	size                      int64
	generation                moraine.Generation
	step                      record.StepID
}

func visible(i *record.Inode) seen {
	return seen{typ: i.Typ, mode: i.Mode, uid: i.Uid, gid: i.Gid, nlink: i.Nlink, parent: i.Parent,
		manyLinks: i.ManyLinks, xattrs: i.Xattrs, sealed: i.Sealed, owner: i.Owner, mtime: i.Mtime, ctime: i.Ctime,
		name: i.Name, target: i.Target, entries: i.Entries, size: i.Size, generation: i.Generation, step: i.Step}
}

// MayRenameTree checks whether a directory with checkpoints below it may get another name or lose
// its name. Even with force, a checkpoint does not leave its place in its run.
func MayRenameTree(t *kvtx.Tx, dir *record.Inode) error {
	if dir.Typ != record.TypeDirectory {
		return nil
	}
	if dir.Sealed {
		return tree.Immutable(t, dir)
	}
	n, err := StepsBelow(t, dir)
	switch {
	case err != nil || n == 0:
		return err
	case !t.Forced:
		return usage.HoldsSteps(dir.Id, n)
	}
	r, err := tree.RunRecord(&t.View, moraine.RunID(dir.Parent))
	if err == nil && r != nil {
		err = kvtx.Fail(moraine.Immutable, "change", dir.Id.String(), "the directory has %d committed checkpoints, which cannot leave their run", n)
	}
	return err
}

// StepsBelow returns the number of committed checkpoints below a directory.
func StepsBelow(t *kvtx.Tx, dir *record.Inode) (int64, error) {
	s, err := kvtx.Look[record.UsageState](&t.View, t.K.Meta(record.MetaUsage))
	if err != nil || s == nil || s.Live == 0 {
		return 0, err
	}
	below, err := t.UsageNow(kvtx.UsageKey{Column: s.Live, Dir: dir.Id})
	return below.Steps, err
}
