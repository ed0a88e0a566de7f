package histories_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// Clones of trees copy a tree that nothing changes, so that their contents are
// known: a directory with a file and a symbolic link. A clone appears at once and
// whole, before its client gets the end of the job.
const (
	treeMode   = 0o750
	fileOfTree = 0o640
	sizeOfTree = 5 // of its file, which is a hole
	markOfTree = "whole"
)

// makeTree makes the tree.
func makeTree(ctx context.Context, c service) (top uint64, err error) {
	ask := func(req *wire.MetaRequest) uint64 {
		if err != nil {
			return 0
		}
		var resp *wire.MetaResponse
		resp, err = c.Meta(ctx, req)
		return resp.GetEntry().GetAttr().GetInode()
	}
	enter := func(in *wire.Create) uint64 {
		in.Exclusive = true
		return ask(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: in}})
	}
	top = enter(&wire.Create{Parent: uint64(moraine.RootInode), Name: "tree", Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: treeMode})
	file := enter(&wire.Create{Parent: top, Name: kids[0], Type: wire.FileType_FILE_TYPE_REGULAR, Mode: fileOfTree})
	enter(&wire.Create{Parent: top, Name: kids[1], Type: wire.FileType_FILE_TYPE_SYMLINK, Target: markOfTree})
	ask(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: file, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: sizeOfTree}}})
	for _, id := range []uint64{top, file} {
		ask(&wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: &wire.SetXattr{Inode: id, Name: "user.x", Value: []byte(markOfTree)}}})
	}
	return top, err
}

// applyCloneTree is the moment at which a clone appears.
func (a arena) applyCloneTree(in input) (string, arena, func(arena) (bool, arena)) {
	if a.at[in.slot] != nil {
		return exists, a, nil
	}
	a.at[in.slot] = &node{dir: true, mode: treeMode, marked: true, xattr: markOfTree}
	children := a.children(in.slot)
	children[0] = &node{mode: fileOfTree, cells: make([]cell, sizeOfTree), marked: true, xattr: markOfTree}
	children[1] = &node{mode: 0o777, target: markOfTree}
	return "", a, nil
}

// cloned waits for the job of a clone. A job fails only because another entry had
// the name by then.
func (w *worker) cloned(ctx context.Context, resp *wire.MetaResponse) error {
	jobs := resp.GetJobs().GetJobs()
	if len(jobs) != 1 {
		return errors.New("no job")
	}
	j, err := w.jobs.Jobs().Wait(ctx, moraine.JobID(jobs[0].GetId()), nil)
	switch {
	case err != nil:
		return fmt.Errorf("waiting: %v", err) // whatever it is, it is not from the clone
	case j.State == client.JobFailed:
		return &moraine.Error{Kind: moraine.Exists}
	case j.State != client.JobDone:
		return errors.New("the job was canceled")
	}
	return nil
}

// growing is the mutant of clones of trees: they appear before they are whole.
type growing struct{ service }

// Meta implements service.
func (s growing) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	tree := req.GetCloneTree()
	if tree == nil {
		return s.service.Meta(ctx, req)
	}
	resp, err := s.service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: tree.GetParent(), Name: tree.GetName(),
		Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: treeMode, Exclusive: true}}})
	if err != nil {
		return nil, err
	}
	top := resp.GetEntry().GetAttr().GetInode()
	for _, c := range []*wire.Create{{Name: kids[0], Type: wire.FileType_FILE_TYPE_REGULAR, Mode: fileOfTree},
		{Name: kids[1], Type: wire.FileType_FILE_TYPE_SYMLINK, Target: markOfTree}} {
		time.Sleep(20 * time.Millisecond)
		c.Parent, c.Exclusive = top, true
		if _, err := s.service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: c}}); err != nil {
			break
		}
	}
	return nil, errors.New("nobody knows what became of it")
}
