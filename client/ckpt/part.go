package ckpt

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/transport/wire"
)

// Keys of a part's `__metadata__`. The first three are those that PyTorch's
// HuggingFaceStorageReader reads. Other readers ignore the last, which is ours.
const (
	keyFormat  = "format"
	keyVersion = "DCP_VERSION"
	keySlices  = "DCP_SHARDING_INFO"
	keyPart    = "MORAINE_PART"

	formatTorch = "pt"
	dcpVersion  = "1.0"

	// partVersion is the version of MORAINE_PART.
	partVersion = 1
)

// dcpSlice is one element of DCP_SHARDING_INFO, by tensor name.
type dcpSlice struct {
	SavedOffsets []int64 `json:"saved_offsets"`
}

// partMeta is MORAINE_PART, with which CheckStep checks the step's coverage.
type partMeta struct {
	Version int                   `json:"version"`
	Run     string                `json:"run"`
	Attempt uint32                `json:"attempt"`
	Step    uint64                `json:"step"`
	Rank    uint32                `json:"rank"`
	World   uint32                `json:"world"`
	File    int                   `json:"file"`
	Tensors map[string]tensorMeta `json:"tensors"`
	// Blobs are in the rank's first file only.
	Blobs map[string]blobMeta `json:"blobs,omitempty"`
	// Shared are slices that the rank has, and that another rank of the step stores. They are in the
	// rank's first file only.
	Shared []sharedMeta `json:"shared,omitempty"`
}

// sharedMeta is a slice whose bytes another rank stores, under the same name and in the same place.
type sharedMeta struct {
	Name   string  `json:"name"`
	DType  string  `json:"dtype"`
	Global []int64 `json:"global"`
	Offset []int64 `json:"offset"`
	Shape  []int64 `json:"shape"`
	Digest string  `json:"digest"`
	// Rank stores it.
	Rank uint32 `json:"rank"`
}

type tensorMeta struct {
	Global []int64 `json:"global"`
	Digest string  `json:"digest"`
}

type blobMeta struct {
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
}

// partSlice is one slice as a part's header describes it.
type partSlice struct {
	Name          string
	DType         DType
	Global        []int64
	Offset, Shape []int64
	Begin         int64 // in the file
	Digest        Digest
}

// partHeader is one parsed header of a part's file.
type partHeader struct {
	meta   partMeta
	root   [sha256.Size]byte
	slices []partSlice
	shared []sharedSlice
}

// sharedSlice is a slice that the rank by stores.
type sharedSlice struct {
	partSlice
	by uint32
}

func stepKeyOf(run moraine.InodeID, attempt uint32, step uint64) *wire.StepKey {
	return &wire.StepKey{Run: uint64(run), Attempt: attempt, Step: step}
}

// metadata renders the `__metadata__` of a file with slices.
func (m *partMeta) metadata(offsets map[string]dcpSlice) (map[string]string, error) {
	part, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	dcp, err := json.Marshal(offsets)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		keyFormat: formatTorch, keyVersion: dcpVersion,
		keySlices: string(dcp), keyPart: string(part),
	}, nil
}

// parseAnyPart reads the header of a part's file, in whatever form its JSON is. b is everything before
// the data. partParser.parse reads the form that this package writes, much faster.
func parseAnyPart(b []byte, fileSize int64) (*partHeader, error) {
	h, err := safetensors.Parse(b, fileSize)
	if err != nil {
		return nil, err
	}
	p := &partHeader{root: headerRoot(b)}
	if err := json.Unmarshal([]byte(h.Metadata[keyPart]), &p.meta); err != nil {
		return nil, fmt.Errorf("%s: %w", keyPart, err)
	}
	if p.meta.Version != partVersion {
		return nil, &moraine.Error{Op: "read part", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("%s of version %d; this build reads %d", keyPart, p.meta.Version, partVersion)}
	}
	var offsets map[string]dcpSlice
	if err := json.Unmarshal([]byte(h.Metadata[keySlices]), &offsets); err != nil {
		return nil, fmt.Errorf("%s: %w", keySlices, err)
	}
	if len(p.meta.Tensors) != len(h.Tensors) {
		return nil, fmt.Errorf("%s lists %d tensors, the file has %d", keyPart, len(p.meta.Tensors), len(h.Tensors))
	}
	p.slices = make([]partSlice, len(h.Tensors))
	for i := range h.Tensors {
		if p.slices[i], err = p.slice(&h.Tensors[i], offsets, h.DataStart); err != nil {
			return nil, err
		}
	}
	for i := range p.meta.Shared {
		s, err := p.meta.Shared[i].slice()
		if err != nil {
			return nil, fmt.Errorf("shared tensor %q: %w", p.meta.Shared[i].Name, err)
		}
		p.shared = append(p.shared, s)
	}
	return p, nil
}

func (m *sharedMeta) slice() (sharedSlice, error) {
	s := sharedSlice{partSlice{Name: m.Name, Global: m.Global, Offset: m.Offset, Shape: m.Shape}, m.Rank}
	var err error
	if s.DType, err = safetensors.ParseDType(m.DType); err == nil {
		s.Digest, err = parseDigest(m.Digest)
	}
	if err == nil {
		err = checkSlice(m.Global, m.Offset, m.Shape)
	}
	if err == nil {
		_, err = safetensors.SizeOf(s.DType, m.Global)
	}
	return s, err
}

func (p *partHeader) slice(t *safetensors.Tensor, offsets map[string]dcpSlice, dataStart int64) (partSlice, error) {
	m, ok := p.meta.Tensors[t.Name]
	o, ok2 := offsets[t.Name]
	if !ok || !ok2 {
		return partSlice{}, fmt.Errorf("tensor %q is missing from the metadata", t.Name)
	}
	d, err := parseDigest(m.Digest)
	if err == nil {
		err = checkSlice(m.Global, o.SavedOffsets, t.Shape)
	}
	if err == nil {
		_, err = safetensors.SizeOf(t.DType, m.Global)
	}
	if err != nil {
		return partSlice{}, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	return partSlice{Name: t.Name, DType: t.DType, Global: m.Global, Offset: o.SavedOffsets,
		Shape: t.Shape, Begin: dataStart + t.Begin, Digest: d}, nil
}

// belongs compares a header with the part in which it was found.
func (p *partHeader) belongs(key *wire.StepKey, rank, world uint32, file int) error {
	m := &p.meta
	run := strconv.FormatUint(key.Run, 16)
	if m.Run != run || m.Attempt != key.Attempt || m.Step != key.Step || m.Rank != rank || m.World != world || m.File != file {
		return fmt.Errorf("the header of file %d of rank %d of %d names file %d of rank %d of %d in run %s, attempt %d, step %d",
			file, rank, world, m.File, m.Rank, m.World, m.Run, m.Attempt, m.Step)
	}
	return nil
}
