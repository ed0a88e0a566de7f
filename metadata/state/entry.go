package state

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"google.golang.org/protobuf/proto"
)

// A log entry packs the commands that were waiting when the leader proposed it. Its form is
// described in docs/formats/log-entry.md:
//
//	magic "MOLE" | version 1 | count, uvarint | count x (length, uvarint | command) | CRC32C
const (
	entryMagic   = "MOLE"
	entryVersion = 1
	// MaxEntryCommands is the largest number of commands in one entry.
	MaxEntryCommands = 4096
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EncodeEntry packs encoded commands into one log entry, in order. It panics if
// there are more than MaxEntryCommands.
func EncodeEntry(cmds [][]byte) []byte {
	if len(cmds) > MaxEntryCommands {
		panic(fmt.Sprintf("state: %d commands in an entry", len(cmds)))
	}
	size := len(entryMagic) + 1 + 2*binary.MaxVarintLen32 + 4
	for _, c := range cmds {
		size += binary.MaxVarintLen32 + len(c)
	}
	b := make([]byte, 0, size)
	b = append(b, entryMagic...)
	b = append(b, entryVersion)
	b = binary.AppendUvarint(b, uint64(len(cmds)))
	for _, c := range cmds {
		b = append(binary.AppendUvarint(b, uint64(len(c))), c...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// CheckEntry returns Corrupt if the bytes of a log entry fail their checksum, whatever its version.
func CheckEntry(b []byte) error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "check log entry", Kind: moraine.Corrupt, Err: fmt.Errorf(format, args...)}
	}
	if len(b) < len(entryMagic)+6 || string(b[:len(entryMagic)]) != entryMagic {
		return bad("%d bytes are too few for an entry", len(b))
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if have := crc32.Checksum(body, castagnoli); have != sum {
		return bad("the entry has CRC32C %08x, want %08x", have, sum)
	}
	return nil
}

// DecodeEntry unpacks a log entry. Damage is Corrupt, an entry of a newer
// version NewerFormat.
func DecodeEntry(b []byte) ([]*statepb.Command, error) {
	bad := func(format string, args ...any) ([]*statepb.Command, error) {
		return nil, &moraine.Error{Op: "decode log entry", Kind: moraine.Corrupt, Err: fmt.Errorf(format, args...)}
	}
	if err := CheckEntry(b); err != nil {
		return nil, err
	}
	d := record.Dec{B: b[len(entryMagic) : len(b)-4]}
	if v := d.Byte(); v != entryVersion {
		return nil, &moraine.Error{Op: "decode log entry", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("the entry has version %d, but this build supports up to %d: start a newer build", v, entryVersion)}
	}
	n := d.Count(1)
	if n > MaxEntryCommands {
		return bad("the entry has %d commands, %d at most", n, MaxEntryCommands)
	}
	cmds := make([]*statepb.Command, 0, n)
	for range n {
		size := d.Count(1)
		if d.Err != nil {
			break
		}
		cmd := &statepb.Command{}
		if err := proto.Unmarshal(d.B[:size], cmd); err != nil {
			return bad("command %d: %w", len(cmds), err)
		}
		d.B = d.B[size:]
		cmds = append(cmds, cmd)
	}
	if err := d.End("log entry"); err != nil {
		return nil, err
	}
	return cmds, nil
}
