package state_test

import (
	"fmt"
	"strings"

	"github.com/morainefs/moraine/transport/wire"
)

// delegation is a line of a transcript about delegated directories:
//
//	delegate PATH             the session gets the directory and 10 inode numbers
//	end PATH                  it gives the directory back
//	endall                    it gives all back, and its numbers
//	batch OP ARG ...          one change: mkdir PATH, touch PATH, rm PATH, mv PATH PATH
//	meets PATH                what a create in the directory meets
func (s *script) delegation(args []string) string {
	switch args[0] {
	case "delegate":
		resp := s.at.do(&wire.MetaRequest{Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Inode: s.named(args[1]), Numbers: 10}}})
		r := resp.GetDelegate()
		if r == nil {
			return outcome(resp)
		}
		if r.Delegated {
			s.reserved = r.First
		}
		return strings.TrimSpace(fmt.Sprintf("delegated %t %s", r.Delegated, r.Why))
	case "end":
		return outcome(s.at.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{Inodes: []uint64{s.named(args[1])}}}}))
	case "endall":
		return outcome(s.at.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{All: true}}}))
	case "meets":
		res := s.at.send(s.at.request(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: s.named(args[1]), Name: "met", Type: wire.FileType_FILE_TYPE_REGULAR}}}))
		if len(res.Met) == 0 {
			return "nothing: " + outcome(res.Response)
		}
		return fmt.Sprintf("%d directories of another session", len(res.Met))
	}
	resp := s.at.do(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: []*wire.BatchOp{s.change(args[1:])}}}})
	if resp.GetError() != nil {
		return outcome(resp)
	}
	return outcome(&wire.MetaResponse{Error: resp.GetBatch().GetResults()[0].GetError()})
}

// change returns the change of a batch that a line describes.
func (s *script) change(args []string) *wire.BatchOp {
	parent, name := s.split(args[1])
	op := &wire.BatchOp{At: s.wall - 1000}
	switch args[0] {
	case "rm":
		op.Op = &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: parent, Name: name}}
		return op
	case "mv":
		to, newName := s.split(args[2])
		op.Op = &wire.BatchOp_Rename{Rename: &wire.Rename{Parent: parent, Name: name, NewParent: to, NewName: newName}}
		return op
	}
	typ := wire.FileType_FILE_TYPE_REGULAR
	if args[0] == "mkdir" {
		typ, op.Delegate = wire.FileType_FILE_TYPE_DIRECTORY, true
	}
	op.Inode, s.reserved = s.reserved, s.reserved+1
	op.Op = &wire.BatchOp_Create{Create: &wire.Create{Parent: parent, Name: name, Type: typ, Mode: 0o755}}
	return op
}
