package huggingface

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/localfiles"
)

// Directory is a directory of Hugging Face's libraries.
type Directory struct {
	// Files are the paths of the files to import: the safetensors files that the index lists (all,
	// if there is no index), and every other regular file that is not hidden.
	Files []string
	// Skipped are the names in the directory that are not imported: directories, and safetensors
	// files that the index does not list.
	Skipped []string

	weights map[string]string // nil: no index
	dir     string
}

// Find lists the files of a directory. It fails with InvalidArgument if there is no safetensors
// file, or one that the index lists is missing.
func Find(dir string) (*Directory, error) {
	d := &Directory{dir: dir}
	if err := d.readIndex(); err != nil {
		return nil, err
	}
	listed := map[string]bool{}
	for _, name := range d.weights {
		listed[name] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	shards := 0
	for _, e := range entries {
		name := e.Name()
		shard := filepath.Ext(name) == localfiles.Extension
		switch {
		case strings.HasPrefix(name, "."):
		case !isFile(filepath.Join(dir, name)) || shard && d.weights != nil && !listed[name]:
			d.Skipped = append(d.Skipped, name)
		default:
			d.Files = append(d.Files, filepath.Join(dir, name))
			delete(listed, name)
			if shard {
				shards++
			}
		}
	}
	for name := range listed {
		return nil, refuse(dir, "%s lists %s, which is not there: download it first", IndexName, name)
	}
	if shards == 0 {
		return nil, refuse(dir, "it has no %s file", "*"+localfiles.Extension)
	}
	return d, nil
}

// isFile reports whether path is a regular file, or a link to one, as in the cache of the hub.
func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func refuse(dir, format string, args ...any) error {
	return &moraine.Error{Op: "import", Ref: dir, Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
}

// readIndex reads the index, if there is one.
func (d *Directory) readIndex() error {
	f, err := os.Open(filepath.Join(d.dir, IndexName))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxIndex+1))
	if err != nil {
		return err
	}
	var index struct {
		Weights map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(b, &index); err != nil || len(b) > maxIndex || index.Weights == nil {
		return refuse(d.dir, "%s is no index of at most %d bytes with a weight_map: %v", IndexName, maxIndex, err)
	}
	d.weights = index.Weights
	return nil
}

// Check compares the index with the tensors of the files. It fails with InvalidArgument, and names
// the first tensor that is elsewhere than the index says.
func (d *Directory) Check(files *localfiles.Files) error {
	if d.weights == nil {
		return nil
	}
	where := map[string]string{}
	for name, header := range files.Tensors() {
		for i := range header.Tensors {
			where[header.Tensors[i].Name] = name
		}
	}
	for _, tensor := range slices.Sorted(maps.Keys(d.weights)) {
		if where[tensor] != d.weights[tensor] {
			return refuse(d.dir, "%s says that tensor %q is in %s, but that file has no such tensor", IndexName, tensor, d.weights[tensor])
		}
	}
	for _, tensor := range slices.Sorted(maps.Keys(where)) {
		if _, ok := d.weights[tensor]; !ok {
			return refuse(d.dir, "%s has tensor %q, which %s does not list", where[tensor], tensor, IndexName)
		}
	}
	return nil
}
