package record

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/locktable"
	"github.com/morainefs/moraine/transport/wire"
)

// encodes makes the decoder of a kind of value from a decoding and an encoding function.
func encodes[V any](decode func([]byte) (V, error), encode func(V) []byte) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) {
		v, err := decode(b)
		if err != nil {
			return nil, err
		}
		return encode(v), nil
	}
}

// rowCodecs are values of small tables.
var rowCodecs = []valueKind{
	{"signing-key", EncodeSigningKey(&wire.SigningKey{Id: 7, PublicKey: []byte("public"), Sealed: []byte("sealed")}), encodes(func(b []byte) (*wire.SigningKey, error) { return DecodeSigningKey(7, b) }, EncodeSigningKey)},
	{"member", EncodeMember(moraine.UUID{1, 15: 2}), encodes(func(b []byte) (moraine.UUID, error) {
		dir, _, err := DecodeMember(b)
		return dir, err
	}, EncodeMember)},
	{"session-nonce", EncodeNonce(1<<40 | 2), encodes(DecodeNonce, EncodeNonce)},
	{"ended-cursor", EncodeEndedCursor(1<<40 | 9), encodes(DecodeEndedCursor, EncodeEndedCursor)},
	{"tombstone-place", Tombstone{Kept: true}.Place(5000), encodes(func(b []byte) (Tombstone, error) {
		since, kept, err := DecodeTombstonePlace(b)
		return Tombstone{Bytes: int64(since), Kept: kept}, err
	}, func(s Tombstone) []byte { return s.Place(uint64(s.Bytes)) })},
	{"kept-on", KeptOn{Bytes: 1 << 33, Chunks: 300, Gone: 5000}.Encode(), encodes(DecodeKeptOn, KeptOn.Encode)},
	{"owned-jobs", EncodeOwned(1000), encodes(DecodeOwned, EncodeOwned)},
	{"locks", EncodeLocks(locktable.Table{
		{Owner: locktable.Owner{Session: 1<<40 | 2, ID: 0xfedcba9876543210}, Start: 0, End: 1 << 63, PID: 4711},
		{Owner: locktable.Owner{Session: 1<<40 | 3, ID: 9}, Start: 100, End: 200},
		{Owner: locktable.Owner{Session: 1<<40 | 3, ID: 9, Flock: true}, Start: 0, End: 1 << 63, Write: true},
	}), encodes(DecodeLocks, EncodeLocks)},
	{"delegations", (&Delegations{Dirs: 300, Reserved: 5000, Used: 700, Numbers: []Numbers{{Next: 1<<40 | 5, End: 1<<40 | 9}, {Next: 1<<40 | 9, End: 1<<40 | 4000}}}).Encode(), func(b []byte) ([]byte, error) {
		d := &Delegations{}
		if err := d.Decode(b); err != nil {
			return nil, err
		}
		return d.Encode(), nil
	}},
	{"inline", (&Inline{Refs: 2, Origin: 1<<40 | 7, CRC: 0xfedcba98, Bytes: []byte("content")}).Encode(), encodes(func(b []byte) (*Inline, error) {
		r := &Inline{}
		return r, r.Decode(b)
	}, (*Inline).Encode)},
	{"step-lease", EncodeStepLease(300), encodes(DecodeStepLease, EncodeStepLease)},
	{"bad-object", (&BadObject{State: wire.ObjectState_OBJECT_STATE_CORRUPT, Offset: 16 << 20, Since: 5000, Text: "other bytes"}).Encode(), encodes(DecodeBadObject, (*BadObject).Encode)},
	{"removed-index", EncodeRemovedIndex("p/run/step-1/.index"), encodes(DecodeRemovedIndex, EncodeRemovedIndex)},
	{"height", EncodeHeight(300), encodes(DecodeHeight, EncodeHeight)},
	{"revocation", EncodeRevocation(&wire.Revocation{Node: "c1", Role: "client", IssuedUntil: 1 << 40, At: 1<<40 + 1}), encodes(func(b []byte) (*wire.Revocation, error) {
		return DecodeRevocation(0, []byte{RevokedNode}, b)
	}, EncodeRevocation)},
}

// tableCodecs names the codecs of each table's values. A mark is a value with only a version. A
// number is a version with a number, a text or a level.
var tableCodecs = map[string]string{
	"metaCluster": "cluster", "metaCounters": "counters counters-2", "metaSum": "sum", "metaFleet": "fleet", "metaUsage": "usage-state usage-recount",
	"metaRouting": "routing", "metaRebalance": "rebalance", "metaEndedCursor": "ended-cursor", "metaMark": "sum-mark",
	"tabMeta": "cluster", "tabSigningKey": "signing-key", "tabTenant": "number", "tabTenantName": "number", "tabMember": "member",
	"tabSession": "session session-principal session-answer", "tabSessionNonce": "session-nonce", "tabAnswer": "response", "tabSessionGrant": "mark",
	"tabSessionInode": "mark", "tabSessionStep": "mark", "tabEndedSession": "mark", "tabSessLock": "mark", "tabSessDir": "mark", "tabSessNumbers": "delegations",
	"tabInode": "file unlinked orphan directory delegated-directory symlink", "tabDentry": "dentry", "tabDetached": "mark", "tabName": "mark", "tabXattr": "xattr", "tabLock": "locks", "tabLinger": "linger",
	"tabRef": "ref", "tabTable": "table table-with-objects", "tabExt": "extent extent-of-object extent-inline", "tabDead": "mark", "tabInline": "inline",
	"tabGrant": "grant", "tabEndedGrant": "grant", "tabStripe": "stripe", "tabMemory": "mark", "tabUnsafe": "file-below-nvme lost-file",
	"tabHost": "host host-away host-with-bucket", "tabDevice": "device silent-device fitting-device", "tabDeviceUUID": "number", "tabDeviceChunk": "presence",
	"tabTombstone": "tombstone", "tabKept": "tombstone", "tabTombstoneAt": "tombstone-place", "tabKeptOn": "kept-on", "tabRepair": "mark",
	"tabRepairStripe": "repair-item repair-item-balance", "tabIntent": "intent", "tabEndedIntent": "ended-intent",
	"tabJob": "job adoption flush-job tree-job concat-job owned-job", "tabJobReady": "mark", "tabJobLease": "mark", "tabJobEnded": "mark", "tabSessJobs": "owned-jobs",
	"tabRun": "run", "tabAttempt": "attempt", "tabLaunch": "number", "tabStep": "open-step adopted-step aborted-step committed-step lost-step", "tabPart": "begun-part adopted-part sealed-part",
	"tabAdopt": "number", "tabClaim": "number", "tabOpenStep": "mark", "tabRunAtt": "mark", "tabSessRun": "mark", "tabRunCommit": "number", "tabRunJob": "number", "tabStepLease": "step-lease", "tabSessLease": "mark", "tabStepBlock": "block",
	"tabObject": "object", "tabObjectKey": "object-key", "tabObjectSums": "object-sums", "tabObjectIntent": "object-intent", "tabMove": "number", "tabUnsettled": "mark",
	"tabTreeDir": "tree-dir", "tabPolicy": "policy", "tabRemovedIndex": "removed-index", "tabBadObject": "bad-object", "tabUsage": "usage usage-damaged", "tabQuota": "quota", "tabHeight": "height",
	"tabRevoked": "revocation", "tabConcatRow": "ranges-of-concatenation", "tabCloneDir": "cloned-directory tree-clone",
}

// TestEveryTableHasACodec: a record without a codec would have no golden value and no fuzzed
// decoder (FuzzValues).
func TestEveryTableHasACodec(t *testing.T) {
	known := map[string]bool{"mark": true, "number": true, "response": true}
	for _, c := range codecs {
		known[c.name] = true
	}
	f, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name := spec.Names[0].Name
		if !strings.HasPrefix(name, "Tab") && !strings.HasPrefix(name, "Meta") || spec.Values == nil {
			return true
		}
		name = strings.ToLower(name[:1]) + name[1:]
		tables++
		row := strings.Fields(tableCodecs[name])
		if len(row) == 0 {
			t.Errorf("%s has no row in tableCodecs: give its values a codec", name)
		}
		for _, c := range row {
			if !known[c] {
				t.Errorf("%s: there is no codec %q", name, c)
			}
		}
		return true
	})
	if tables != len(tableCodecs) {
		t.Errorf("%d tables, and rows for %d", tables, len(tableCodecs))
	}
}
