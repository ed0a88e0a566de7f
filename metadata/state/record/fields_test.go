package record

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// trip takes one form of a record through its encoder and decoder. The test sets all fields.
type trip struct {
	fresh  func() any
	encode func(any) []byte
	decode func([]byte) (any, error)
	key    string    // fields that are only in the key
	absent string    // fields that another form of the record has
	valid  func(any) // sets the fields that cannot have any value; may be nil
}

// trips makes the trip of a record with methods.
func trips[R any, P interface {
	*R
	coded
}](key, absent string, valid func(P)) trip {
	decode := func(b []byte) (P, error) {
		r := P(new(R))
		return r, r.Decode(b)
	}
	return tripsBy(P.Encode, func(b []byte) (*R, error) { return decode(b) }, key, absent, func(r *R) {
		if valid != nil {
			valid(r)
		}
	})
}

// tripsBy makes the trip of a record with functions.
func tripsBy[R any, P interface{ *R }](encode func(P) []byte, decode func([]byte) (*R, error), key, absent string, valid func(*R)) trip {
	return trip{
		fresh:  func() any { return new(R) },
		encode: func(r any) []byte { return encode(r.(*R)) },
		decode: func(b []byte) (any, error) { return decode(b) },
		key:    key, absent: absent,
		valid: func(r any) {
			if valid != nil {
				valid(r.(*R))
			}
		},
	}
}

// tripsOf makes the trip of a record that is decoded by value.
func tripsOf[R any](encode func(R) []byte, decode func([]byte) (R, error), key, absent string) trip {
	return tripsBy(func(r *R) []byte { return encode(*r) }, func(b []byte) (*R, error) {
		r, err := decode(b)
		return &r, err
	}, key, absent, nil)
}

const (
	onlyFile      = " Size Stored Evicted Inline Generation Level Degraded Content Refs LastEnd Object ObjectGen KeptBy Linger From"
	onlyDirectory = " Entries Step Policy Reserved Delegate"
	inodeKey      = "Id Leased Home"
)

var roundTrips = []trip{
	trips[Inode](inodeKey, "Target Rdev"+onlyDirectory, func(i *Inode) { i.Typ = TypeFile }),
	trips[Inode](inodeKey, "Target Rdev"+onlyFile, func(i *Inode) { i.Typ = TypeDirectory }),
	trips[Inode](inodeKey, "Rdev"+onlyFile+onlyDirectory, func(i *Inode) { i.Typ = TypeSymlink }),
	trips[Inode](inodeKey, "Target"+onlyFile+onlyDirectory, func(i *Inode) { i.Typ = TypeChar }),
	trips[Inode](inodeKey, "Target"+onlyFile+onlyDirectory, func(i *Inode) { i.Typ = TypeBlock }),
	trips[Inode](inodeKey, "Target Rdev"+onlyFile+onlyDirectory, func(i *Inode) { i.Typ = TypeFifo }),
	trips[Inode](inodeKey, "Target Rdev"+onlyFile+onlyDirectory, func(i *Inode) { i.Typ = TypeSocket }),
	trips[Cluster]("", "", nil),
	trips[Counters]("", "", nil),
	trips[Session]("Id", "", nil),
	trips[Host]("Id", "", nil),
	trips[Fleet]("", "", nil),
	trips[Delegations]("", "", func(d *Delegations) { d.Reserved, d.Numbers = 1, []Numbers{{Next: 1, End: 2}} }),
	trips[Device]("Id", "", func(d *Device) { d.State, d.Asked = DeviceOut, DeviceDraining }),
	trips[TreeClone]("", "", nil),
	trips[Adoption]("", "", nil),
	trips[ClonedDir]("", "", nil),
	trips[ConcatJob]("", "", nil),
	trips[Usage]("", "", nil),
	trips[UsageState]("", "", func(s *UsageState) { s.Live, s.Phase, s.Building, s.Dropping = 1, RecountDrop, 2, 1 }),
	trips[Quota]("", "", nil),
	trips[RepairItem]("Stripe", "", nil),
	trips[RebalanceSettings]("", "", nil),
	trips[Intent]("Chunk", "", nil),
	trips[Job]("Id", "", nil),
	trips[Object]("Id", "", nil),
	trips[Policy]("", "", nil),
	trips[Owner]("At", "", nil),
	trips[ObjectIntent]("Job", "", nil),
	trips[Run]("Id", "", nil),
	trips[Attempt]("Number", "", nil),
	trips[Step]("Id", "", nil),
	trips[Part]("", "", nil),
	trips[Block]("", "", nil),
	trips[UnsafeFile]("", "", nil),
	tripsBy((*BadObject).Encode, DecodeBadObject, "", "", nil),
	tripsBy((*Grant).Encode, DecodeGrant, "", "", func(g *Grant) { g.Count, g.Used, g.Chunks = 9, []byte{1, 2}, 6 }),
	tripsBy(EncodeStripe, func(b []byte) (*moraine.Stripe, error) { return DecodeStripe(0, b) }, "ID", "", func(s *moraine.Stripe) {
		s.Scheme = moraine.Scheme{K: 1, M: uint8(len(s.Chunks)) - 1}
	}),
	tripsBy(EncodeSigningKey, func(b []byte) (*wire.SigningKey, error) { return DecodeSigningKey(0, b) }, "Id", "", nil),
	tripsBy(EncodeRevocation, func(b []byte) (*wire.Revocation, error) { return DecodeRevocation(0, []byte{RevokedNode}, b) }, "Key Serial", "", nil),
	tripsOf(EncodeExt, func(b []byte) (moraine.Extent, error) { return DecodeExt(make([]byte, 8), b, 0) }, "Offset", "Stripe Inline"),
	tripsOf(EncodeExt, func(b []byte) (moraine.Extent, error) { return DecodeExt(make([]byte, 8), b, 0) }, "Offset", "Stripe Object"),
	tripsOf(EncodeExt, func(b []byte) (moraine.Extent, error) { return DecodeExt(make([]byte, 8), b, 0) }, "Offset", "Object Inline"),
	tripsOf(Dentry.Encode, DecodeDentry, "", ""),
	tripsOf(Ref.Encode, func(b []byte) (Ref, error) { return DecodeRef(make([]byte, 8), b) }, "End", ""),
	tripsOf(TableHead.Encode, DecodeTableHead, "", ""),
	tripsOf(Sum.Encode, DecodeSum, "", ""),
	tripsOf(SumMark.Encode, DecodeSumMark, "", ""),
	tripsOf(EndedIntent.Encode, DecodeEndedIntent, "", ""),
	trips[Inline]("", "", nil),
	tripsOf(KeptOn.Encode, DecodeKeptOn, "", ""),
	tripsOf(Tombstone.Encode, DecodeTombstone, "Kept", ""),
	tripsOf(EncodeConcatRow, DecodeConcatRow, "", ""),
}

// TestEveryFieldIsStored: a record with all fields set is the same after encode and decode, and
// fields of the key are not in the value. So a field that fields, Encode or Decode forgets fails
// here.
func TestEveryFieldIsStored(t *testing.T) {
	stored := map[string]bool{} // type.field
	for _, r := range roundTrips {
		full := r.fresh()
		name := reflect.TypeOf(full).Elem().String()
		var n uint64
		fill(reflect.ValueOf(full).Elem(), &n)
		r.valid(full)
		clearFields(t, full, r.absent)
		b := r.encode(full)
		clearFields(t, full, r.key)
		if again := r.encode(full); !bytes.Equal(again, b) {
			t.Errorf("%s: a field of %q is in the value", name, r.key)
		}
		have, err := r.decode(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		clearFields(t, have, r.key)
		if !reflect.DeepEqual(have, full) {
			t.Errorf("%s: stored %+v, read %+v", name, full, have)
		}
		v := reflect.ValueOf(have).Elem()
		for i := 0; v.Kind() == reflect.Struct && i < v.NumField(); i++ {
			f := name + "." + v.Type().Field(i).Name
			stored[f] = stored[f] || isSet(v.Field(i)) || strings.Contains(" "+r.key+" ", " "+v.Type().Field(i).Name+" ")
		}
	}
	for f, ok := range stored {
		if !ok && !strings.HasPrefix(f, "wire.") {
			t.Errorf("%s is in no form of the record", f)
		}
	}
}

// TestEveryRecordMakesTheTrip: every type with an encoder is in roundTrips.
func TestEveryRecordMakesTheTrip(t *testing.T) {
	known := map[string]bool{
		"StepID":  true, // a part of records
		"answers": true, // a part of Session
	}
	for _, r := range roundTrips {
		known[reflect.TypeOf(r.fresh()).Elem().Name()] = true
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	types := 0
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			m, ok := d.(*ast.FuncDecl)
			if !ok || m.Recv == nil || m.Name.Name != "Encode" {
				continue
			}
			of := m.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			if types++; !known[of.(*ast.Ident).Name] {
				t.Errorf("%s has no line in roundTrips", of)
			}
		}
	}
	if types < 30 {
		t.Errorf("only %d records were found", types)
	}
}

// fill sets v, or all that it consists of, to values other than 0.
func fill(v reflect.Value, n *uint64) {
	if !v.CanSet() {
		return // the state of a message
	}
	*n++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(*n)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); v.Type().Field(i).Anonymous { // its type need not be exported
				for j := range f.NumField() {
					fill(f.Field(j), n)
				}
			} else {
				fill(f, n)
			}
		}
	default:
		panic("no value for " + v.Type().String())
	}
}

// isSet reports whether no part of v is 0.
func isSet(v reflect.Value) bool {
	if v.Kind() != reflect.Struct {
		return !v.IsZero()
	}
	for i := range v.NumField() {
		if !isSet(v.Field(i)) {
			return false
		}
	}
	return true
}

// clearFields sets the named fields to 0.
func clearFields(t *testing.T, record any, names string) {
	t.Helper()
	for _, name := range strings.Fields(names) {
		f := reflect.ValueOf(record).Elem().FieldByName(name)
		if !f.IsValid() {
			t.Fatalf("%T has no field %s", record, name)
		}
		f.SetZero()
	}
}
