package ckptcmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// checkFiles fails where files cannot form a part together: one cannot be read, or a name
// occurs twice.
func checkFiles(files []string) error {
	names := map[string]string{}
	once := func(what, name, file string) error {
		if other, ok := names[what+name]; ok {
			return fmt.Errorf("%s: its %s %q is in %s too: names in a part must differ", file, what, name, other)
		}
		names[what+name] = file
		return nil
	}
	for _, file := range files {
		if filepath.Ext(file) != ".safetensors" {
			if st, err := os.Stat(file); err != nil {
				return err
			} else if !st.Mode().IsRegular() {
				return fmt.Errorf("%s is not a regular file", file)
			}
			if err := once("name", filepath.Base(file), file); err != nil {
				return err
			}
			continue
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		header, _, err := readHeader(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, t := range header.Tensors {
			if err := once("tensor", t.Name, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// addFile adds the tensors of a safetensors file to a save, or any other file
// as a blob.
func addFile(ctx context.Context, save *ckpt.Part, file string) error {
	if filepath.Ext(file) != ".safetensors" {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return save.AddBlob(ctx, filepath.Base(file), data)
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	header, dataAt, err := readHeader(f)
	if err != nil {
		return err
	}
	for _, t := range header.Tensors {
		data := make([]byte, t.Size())
		if _, err := f.ReadAt(data, dataAt+t.Begin); err != nil && err != io.EOF {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		if err := save.AddTensor(ctx, ckpt.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: data}); err != nil {
			return err
		}
	}
	return nil
}

// readHeader reads the header of a safetensors file, and where its data begins.
func readHeader(f *os.File) (*safetensors.Header, int64, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	first := make([]byte, safetensors.LengthBytes)
	if _, err := f.ReadAt(first, 0); err != nil {
		return nil, 0, fmt.Errorf("not a safetensors file: %w", err)
	}
	n, err := safetensors.HeaderLen(first)
	if err != nil {
		return nil, 0, err
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, 0, fmt.Errorf("the header is truncated: %w", err)
	}
	h, err := safetensors.Parse(b, info.Size())
	return h, int64(len(b)), err
}

// sizeOf returns how many bytes files have together: a bound of the part that they make.
func sizeOf(files []string) (n int64, err error) {
	for _, file := range files {
		st, err := os.Stat(file)
		if err != nil {
			return 0, err
		}
		n += st.Size()
	}
	return max(n, 1), nil
}
