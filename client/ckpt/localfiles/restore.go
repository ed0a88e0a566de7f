package localfiles

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/crc"
)

// Original is one file from which a checkpoint was saved.
type Original struct {
	// Rank saved it.
	Rank uint32
	// Name is the file's name, without a directory.
	Name string
	Size int64
	// Header is everything before the data of a safetensors file; nil for any other file.
	Header []byte

	crc  uint32
	blob string
}

// Saved returns the files from which k was saved, by rank, in the order of the save. It returns none
// if a rank saved its part in another way. It fails with Corrupt if a manifest is damaged.
func Saved(ctx context.Context, k *ckpt.Checkpoint) ([]Original, error) {
	var out []Original
	for rank := range k.World() {
		if !slices.Contains(k.BlobNames(rank), Manifest) {
			return nil, nil
		}
		b, err := k.ReadBlob(ctx, rank, Manifest)
		if err != nil {
			return nil, err
		}
		var m manifest
		if err := json.Unmarshal(b, &m); err != nil || m.Format != format {
			return nil, corrupt(rank, "it is no manifest of format %q: %v", format, err)
		}
		for _, e := range m.Files {
			o, err := original(rank, e)
			if err != nil {
				return nil, err
			}
			out = append(out, o)
		}
	}
	return out, nil
}

func corrupt(rank uint32, what string, args ...any) error {
	return &moraine.Error{Op: "read manifest", Ref: fmt.Sprintf("rank %d, blob %q", rank, Manifest), Kind: moraine.Corrupt, Err: fmt.Errorf(what, args...)}
}

// original checks an entry: a restore writes to a file of its name.
func original(rank uint32, e entry) (Original, error) {
	sum, err := strconv.ParseUint(e.CRC, 16, 32)
	switch {
	case e.Name != filepath.Base(e.Name) || e.Name == "." || e.Name == ".." || strings.ContainsAny(e.Name, "/\x00"):
		return Original{}, corrupt(rank, "%q is not the name of a file", e.Name)
	case err != nil || e.Size < 0:
		return Original{}, corrupt(rank, "file %q has a bad size or checksum", e.Name)
	}
	return Original{Rank: rank, Name: e.Name, Size: e.Size, Header: e.Header, crc: uint32(sum), blob: e.Blob}, nil
}

// Paths returns where to write the files: by name, or, if two ranks saved files of the same name,
// as rank-RANK/NAME.
func Paths(files []Original) []string {
	names, twice := map[string]bool{}, false
	for _, o := range files {
		twice = twice || names[o.Name]
		names[o.Name] = true
	}
	paths := make([]string, len(files))
	for i, o := range files {
		if paths[i] = o.Name; twice {
			paths[i] = filepath.Join(fmt.Sprintf("rank-%05d", o.Rank), o.Name)
		}
	}
	return paths
}

// Write writes the file to w, byte for byte as it was saved, and fails with Corrupt if the bytes do
// not have the checksum of the original.
func (o *Original) Write(ctx context.Context, k *ckpt.Checkpoint, w io.Writer) error {
	s := &summed{w: w}
	if err := o.write(ctx, k, s); err != nil {
		return err
	}
	if s.size != o.Size || s.crc != o.crc {
		return &moraine.Error{Op: "restore", Ref: o.Name, Kind: moraine.Corrupt,
			Err: fmt.Errorf("got %d bytes with CRC32C %08x; the original had %d with %08x", s.size, s.crc, o.Size, o.crc)}
	}
	return nil
}

func (o *Original) write(ctx context.Context, k *ckpt.Checkpoint, w io.Writer) error {
	if o.Header == nil {
		for i, f := range k.Files() {
			if f.Kind == ckpt.BlobFile && f.Rank == o.Rank && f.Blob == o.blob {
				return k.WriteFile(ctx, w, i)
			}
		}
		return corrupt(o.Rank, "file %q: the step has no blob %q", o.Name, o.blob)
	}
	h, err := safetensors.Parse(o.Header, o.Size)
	if err != nil {
		return corrupt(o.Rank, "file %q: %v", o.Name, err)
	}
	if _, err := w.Write(o.Header); err != nil {
		return err
	}
	names := make([]string, len(h.Tensors))
	for i := range h.Tensors {
		names[i] = h.Tensors[i].Name
	}
	return k.WriteTensors(ctx, w, names...)
}

// summed computes the checksum of what it passes on.
type summed struct {
	w    io.Writer
	size int64
	crc  uint32
}

// Write writes to w.
func (s *summed) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.size += int64(n)
	s.crc = crc.Update(s.crc, p[:n])
	return n, err
}
