// Package localfiles saves local files as a part of a checkpoint, and writes them back. The tensors
// of safetensors files become tensors of the part, and every other file becomes a blob. One blob
// more (Manifest) says how the files were, so that the copies are identical to the originals.
//
// One path through it: Open maps the files -> Files.AddTo adds their bytes and the manifest to a
// Part -> later, Saved reads the manifests of a Checkpoint -> Original.Write writes one file.
package localfiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// Extension ends the names of safetensors files.
const Extension = ".safetensors"

// Files are local files, mapped into memory. They must not change, and above all not be cut
// shorter, until Close.
type Files struct {
	list []file
}

// file is one of them.
type file struct {
	path, name string
	mem        []byte
	// header is set for a safetensors file; blob is the name of any other file's blob.
	header *safetensors.Header
	blob   string
}

// Open maps files and reads their headers. It fails with InvalidArgument if they cannot form a part
// together: one is not a regular file, or a name occurs twice. The caller closes the Files.
func Open(paths []string) (_ *Files, err error) {
	f := &Files{}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	names := map[string]string{}
	once := func(what, name, path string) error {
		if other, ok := names[what+name]; ok {
			return refuse(path, "its %s %q is in %s too: names in a part must differ", what, name, other)
		}
		names[what+name] = path
		return nil
	}
	for _, path := range paths {
		one := file{path: path, name: filepath.Base(path)}
		if one.mem, err = mapFile(path); err != nil {
			return nil, err
		}
		f.list = append(f.list, one)
		if err := once("name", one.name, path); err != nil {
			return nil, err
		}
		if filepath.Ext(path) != Extension {
			continue
		}
		last := &f.list[len(f.list)-1]
		if last.header, err = parse(path, one.mem); err != nil {
			return nil, err
		}
		for _, t := range last.header.Tensors {
			if err := once("tensor", t.Name, path); err != nil {
				return nil, err
			}
		}
	}
	return f, f.nameBlobs()
}

func refuse(path, format string, args ...any) error {
	return &moraine.Error{Op: "save files", Ref: path, Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
}

// mapFile maps a regular file. A file without bytes has no mapping.
func mapFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping keeps it
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, refuse(path, "it is not a regular file")
	}
	if st.Size() == 0 {
		return nil, nil
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return mem, nil
}

// parse reads the header of a safetensors file.
func parse(path string, mem []byte) (*safetensors.Header, error) {
	n, err := safetensors.HeaderLen(mem)
	if err == nil && n > int64(len(mem)) {
		err = errors.New("the header is cut off")
	}
	if err != nil {
		return nil, refuse(path, "not a safetensors file: %v", err)
	}
	h, err := safetensors.Parse(mem[:n], int64(len(mem)))
	if errors.Is(err, safetensors.ErrDType) {
		return nil, refuse(path, "%v", err)
	}
	if err != nil {
		return nil, refuse(path, "not a safetensors file: %v", err)
	}
	return h, nil
}

// nameBlobs gives each file that is no safetensors file the name of its blob: its own, if that is
// the name of a blob.
func (f *Files) nameBlobs() error {
	blobs := 0
	for i := range f.list {
		one := &f.list[i]
		if one.header != nil {
			continue
		}
		blobs++
		if one.blob = one.name; one.name == Manifest || !ckpt.IsBlobName(one.name) {
			one.blob = fmt.Sprintf("file-%d", i)
		}
	}
	if most := ckpt.MaxFiles - 2; blobs > most {
		return &moraine.Error{Op: "save files", Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("%d files besides safetensors files; a part has room for %d: put some of them into an archive", blobs, most)}
	}
	return nil
}

// Bytes returns how many bytes the part has at most: for ckpt.BeginOptions.
func (f *Files) Bytes() int64 {
	n := int64(4096) // of the manifest, without headers
	for _, one := range f.list {
		n += int64(len(one.mem)) + 1024
		if one.header != nil {
			n += 2 * one.header.DataStart // in base64
		}
	}
	return n
}

// Tensors returns the header of each safetensors file, by the file's name. The caller must not
// change them.
func (f *Files) Tensors() map[string]*safetensors.Header {
	out := map[string]*safetensors.Header{}
	for _, one := range f.list {
		if one.header != nil {
			out[one.name] = one.header
		}
	}
	return out
}

// Close unmaps the files. No part may read them any more: Part.Done is closed.
func (f *Files) Close() {
	for _, one := range f.list {
		if one.mem != nil {
			_ = unix.Munmap(one.mem) // it was mapped
		}
	}
	f.list = nil
}
