package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/internal/crc"
)

const (
	manifestVersion = 1
	manifestSuffix  = ".json"
)

// manifest is what the agent keeps of a sealed part beside its slot, so that the agent after it
// can write the part to the cluster.
type manifest struct {
	Version int             `json:"version"`
	UID     uint32          `json:"uid"`
	Open    agentproto.Open `json:"open"`
	RunID   uint64          `json:"run_id"`
	Attempt uint32          `json:"attempt"`
	// SealTimeoutMillis is Begin's.
	SealTimeoutMillis int64           `json:"seal_timeout_ms,omitempty"`
	Seal              agentproto.Seal `json:"seal"`
	// Sums is a table as Seal.SumsAt has it in the slot, of a part whose seal has none: what the bytes were
	// at the seal.
	Sums []byte `json:"sums,omitempty"`
	// Committed says that the step is: the slot is only kept to be read.
	Committed bool `json:"committed,omitempty"`
	// Level is that of a committed step at that time.
	Level string `json:"level,omitempty"`
	// Decided says that Shared is final: which tensors of the seal, by number, another rank of the step
	// stores, and which rank.
	Decided bool           `json:"decided,omitempty"`
	Shared  map[int]uint32 `json:"shared,omitempty"`
}

// write makes or replaces the manifest of a slot. It takes effect whole or not at all.
func (m *manifest) write(dir, slot string) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b = fmt.Appendf(b, "\n%08x\n", crc.Sum(b))
	path := filepath.Join(dir, slot+manifestSuffix)
	tmp := path + ".new"
	if err = os.WriteFile(tmp, b, 0o600); err != nil {
		err = noSpace(err)
	} else {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp) // the next agent removes what is left of it
	}
	return err
}

// noSpace is the error of a tmpfs that is full.
func noSpace(err error) error {
	return &moraine.Error{Op: "agent.Seal", Kind: moraine.NoSpace, Err: err}
}

// removeManifest removes the manifest of a slot, if it has one.
func removeManifest(dir, slot string) error {
	err := os.Remove(filepath.Join(dir, slot+manifestSuffix))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func readManifest(path string) (*manifest, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b, err = checkedJSON(b)
	if err != nil {
		return nil, &moraine.Error{Op: "read manifest", Ref: path, Kind: moraine.Corrupt, Err: err}
	}
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, &moraine.Error{Op: "read manifest", Ref: path, Kind: moraine.Corrupt, Err: err}
	}
	if m.Version != manifestVersion {
		return nil, &moraine.Error{Op: "read manifest", Ref: path, Kind: moraine.NewerFormat,
			Err: fmt.Errorf("version %d; this build reads %d: start the agent that wrote it, or a newer one", m.Version, manifestVersion)}
	}
	if m.Seal.SumsAt == 0 && int64(len(m.Sums)) != 4*blocksOf(&m.Seal) {
		return nil, &moraine.Error{Op: "read manifest", Ref: path, Kind: moraine.Corrupt,
			Err: fmt.Errorf("%d bytes of sums for %d blocks", len(m.Sums), blocksOf(&m.Seal))}
	}
	return &m, nil
}

// checkedJSON returns the JSON of a manifest. Its second line has the CRC32C of the first.
func checkedJSON(b []byte) ([]byte, error) {
	text, sum, _ := bytes.Cut(b, []byte("\n"))
	if want := fmt.Sprintf("%08x\n", crc.Sum(text)); string(sum) != want {
		return nil, fmt.Errorf("its checksum is %.9q, not %q", sum, want)
	}
	return text, nil
}

// bytes returns how many bytes the part has.
func (m *manifest) bytes() (n int64) {
	for _, t := range m.Seal.Tensors {
		n += t.Bytes
	}
	for _, b := range m.Seal.Blobs {
		n += b.Bytes
	}
	return n
}

// checkPlaces fails unless all that a Seal names lies in a slot of size bytes, each byte once: otherwise the sums of a
// part, and what is written of it, would have no bound.
func checkPlaces(seal *agentproto.Seal, size int64) error {
	left := size
	check := func(what, name string, at, n int64) error {
		if at < 0 || n < 0 || at > size || n > size-at {
			return &moraine.Error{Op: "agent.Seal", Ref: name, Kind: moraine.InvalidArgument,
				Err: fmt.Errorf("the %s at %d of %d bytes is not within the slot's %d", what, at, n, size)}
		}
		if left -= n; left < 0 {
			return &moraine.Error{Op: "agent.Seal", Ref: name, Kind: moraine.InvalidArgument,
				Err: fmt.Errorf("tensors and blobs overlap: together they have more than the slot's %d bytes", size)}
		}
		return nil
	}
	for _, t := range seal.Tensors {
		if err := check("tensor", t.Name, t.At, t.Bytes); err != nil {
			return err
		}
	}
	for _, b := range seal.Blobs {
		if err := check("blob", b.Name, b.At, b.Bytes); err != nil {
			return err
		}
	}
	if seal.SumsAt == 0 {
		return nil
	}
	left = size
	return check("table of sums", "sums_at", seal.SumsAt, 4*blocksOf(seal))
}
