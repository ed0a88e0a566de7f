package intruder_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestIntruderMeetsNoForeignHold: another session has an exclusive lease of a
// foreign directory, with numbers for files that it has yet to make. A confined
// caller requests the directory, its contents, and these numbers, and tries to
// change them. It is answered at once, as for missing things, and the leader asks
// the holder for nothing.
func TestIntruderMeetsNoForeignHold(t *testing.T) {
	for _, k := range confined {
		t.Run(k.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				t := w.t
				empty, err := w.owner.Mkdir(t.Context(), "/b/"+secret+"-held", 0o777)
				require.NoError(t, err)
				holder := w.intrude(transport.Peer{Role: transport.RoleClient, Node: "holder"})
				lease := func(l *wire.Leases) *wire.LeasesReply {
					resp, err := holder.do(&wire.MetaRequest{Op: &wire.MetaRequest_Leases{Leases: l}})
					require.NoError(t, err)
					return resp.GetLeases()
				}
				lease(&wire.Leases{Epoch: 1, Begin: true})
				resp, err := holder.do(&wire.MetaRequest{LeaseEpoch: 1, Op: &wire.MetaRequest_Hold{Hold: &wire.Hold{Directory: empty.Inode, Numbers: 64}}})
				require.NoError(t, err)
				held := resp.GetHold()
				require.NotZero(t, held.Since, "%v", held)
				number := held.First
				require.NotZero(t, number)
				i := w.intrude(k.peer)
				for n, inode := range []uint64{empty.Inode, number, number + 63} {
					for _, req := range []*wire.MetaRequest{
						{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: inode}}},
						{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: inode, Name: "x"}}},
						{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: inode, Limit: 1}}},
						{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{Inode: inode}}},
						{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: inode, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: 1}}},
						{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: inode, Name: "x", Type: wire.FileType_FILE_TYPE_REGULAR}}},
						{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: inode, Count: 1}}},
					} {
						began := time.Now()
						_, err := i.do(req)
						if got := kind(err); got != "not found" && !(k.name == "read-only" && got == "read only") {
							t.Errorf("%T of %d: %s", req.Op, n, got)
						}
						if waited := time.Since(began); waited > 500*time.Millisecond {
							t.Errorf("%T of %d waited for %v", req.Op, n, waited)
						}
						for _, r := range lease(&wire.Leases{Epoch: 1, WaitMillis: 1}).GetRecalls() {
							t.Errorf("%T of %d: the holder gets a request for %v", req.Op, n, r)
						}
						if t.Failed() {
							return
						}
					}
				}
			})
		})
	}
}
