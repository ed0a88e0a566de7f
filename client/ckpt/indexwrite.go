package ckpt

import (
	"fmt"
	"runtime"
)

// encodeIndex writes the index of tensors, which are sorted by name.
func encodeIndex(top *indexTop, tensors []TensorInfo) ([]byte, error) {
	var out []byte
	sizes := make([]blockSize, len(tensors))
	for i := range tensors {
		sizes[i] = blockSize{entrySize(tensors[i].Name, len(tensors[i].Shape)), len(tensors[i].Slices)}
	}
	err := writeIndex(top, sizes, func(i, j int) ([]TensorInfo, error) { return tensors[i:j], nil }, func(p []byte) error {
		out = append(out, p...)
		return nil
	})
	return out, err
}

// blockSize is what a tensor takes of a block.
type blockSize struct{ bytes, slices int }

// encoded is a block that was encoded, or why it could not be.
type encoded struct {
	block indexBlock
	bytes []byte
	size  uint64 // of its tensors
	err   error
}

// writeIndex encodes the blocks of an index, several at once, and gives them and the top to write,
// in order. write keeps what it gets. tensors returns the tensors [i, j), which are sorted by name;
// several goroutines call it.
func writeIndex(top *indexTop, sizes []blockSize, tensors func(i, j int) ([]TensorInfo, error), write func([]byte) error) error {
	top.blocks, top.tensors, top.bytes = nil, uint64(len(sizes)), 0
	blocks := make(chan chan encoded, runtime.GOMAXPROCS(0))
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer close(blocks)
		for i := 0; i < len(sizes); {
			j := blockEnd(sizes, i)
			one := make(chan encoded, 1)
			select {
			case blocks <- one:
			case <-stop:
				return
			}
			go func(i int) { one <- encodeTensors(tensors, i, j) }(i)
			i = j
		}
	}()
	var at int64
	for one := range blocks {
		b := <-one
		if b.err != nil {
			return b.err
		}
		b.block.off = at
		at += b.block.length()
		top.bytes += b.size
		top.blocks = append(top.blocks, b.block)
		if err := write(b.bytes); err != nil {
			return err
		}
	}
	end := appendTop(nil, top)
	if len(end) > maxIndexTop {
		return &Verdict{fmt.Sprintf("the top of the index has %d bytes; it may have %d", len(end), maxIndexTop)}
	}
	return write(appendFooter(end, at))
}

// blockEnd returns where the block that begins with tensor i ends.
func blockEnd(sizes []blockSize, i int) int {
	var b blockSize
	for ; i < len(sizes) && !blockFull(b.bytes, b.slices); i++ {
		b.bytes += sizes[i].bytes
		b.slices += sizes[i].slices
	}
	return i
}

func encodeTensors(of func(i, j int) ([]TensorInfo, error), i, j int) (e encoded) {
	var tensors []TensorInfo
	if tensors, e.err = of(i, j); e.err != nil {
		return e
	}
	for i := range tensors {
		e.size += uint64(tensors[i].Size())
	}
	if e.block, e.bytes, e.err = encodeBlock(tensors); e.err != nil {
		e.err = &Verdict{e.err.Error()}
	}
	return e
}
