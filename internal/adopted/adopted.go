// Package adopted names the files of an adopted step. A step's directory has no directories in it,
// and the files of a framework may lie in some. So the name of a file in the step is its path with
// each / escaped. The metadata service makes the names, and clients read them. One path through it:
// Name of a cloned file -> the index -> Path, where a restore puts the file.
package adopted

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/morainefs/moraine"
)

// PartFiles is the number of files in each part of an adopted step but the last.
const PartFiles = 64

// Files that complete a directory: of torch.distributed.checkpoint; of Megatron, above the directories
// of the iterations; and of Hugging Face libraries. The last is that of a model in one file.
const (
	DCPMetadata     = ".metadata"
	MegatronTracker = "latest_checkpointed_iteration.txt"
	HFIndex         = "model.safetensors.index.json"
	HFModel         = "model.safetensors"
	// TrainerState is what the Trainer of transformers writes last into the directory of a checkpoint, after the
	// model, the optimizer and the states of the random numbers.
	TrainerState = "trainer_state.json"
)

// CompletesDirectory reports whether a framework writes the file of that name last.
func CompletesDirectory(name string) bool {
	return name == DCPMetadata || name == MegatronTracker || name == HFIndex || name == TrainerState
}

// What the Trainer writes between the model and TrainerState. Who saves only the model writes no optimizer.
const (
	TrainerArgs      = "training_args.bin"
	TrainerOptimizer = "optimizer.pt"
)

// trainerDir is how the Trainer names the directory of a step, before its number.
const trainerDir = "checkpoint-"

// IsTrainers reports whether the Trainer of transformers writes a directory. has reports whether the directory
// has a file.
func IsTrainers(dir string, has func(name string) (bool, error)) (bool, error) {
	if name := strings.TrimRight(dir, "0123456789"); name != dir && strings.HasSuffix(name, trainerDir) {
		return true, nil
	}
	for _, file := range []string{TrainerArgs, TrainerOptimizer} {
		if ok, err := has(file); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// IndexName is the name of the index in a step's directory. No adopted file gets it.
const IndexName = "index.moraine"

var escapes = strings.NewReplacer("%", "%25", "/", "%2F")

// Name returns the name in a step's directory of a file whose path below the adopted directory is
// given. It fails if the name would be too long.
func Name(path string) (string, error) {
	name := escapes.Replace(path)
	if name == IndexName {
		name = fmt.Sprintf("%%%02X%s", name[0], name[1:])
	}
	if len(name) > moraine.MaxNameLen {
		return "", fmt.Errorf("its path makes a name of %d bytes in the step, %d at most: shorten the names of its directories", len(name), moraine.MaxNameLen)
	}
	return name, nil
}

// Path is the reverse of Name. It fails for a name that Name does not return, and for a path that
// leads out of the directory.
func Path(name string) (string, error) {
	b := make([]byte, 0, len(name))
	for rest := name; rest != ""; {
		if rest[0] != '%' {
			b, rest = append(b, rest[0]), rest[1:]
			continue
		}
		var c byte
		if len(rest) < 3 {
			return "", errors.New("an escape is cut short")
		}
		if _, err := fmt.Sscanf(rest[1:3], "%02X", &c); err != nil {
			return "", errors.New("an escape has no two digits")
		}
		b, rest = append(b, c), rest[3:]
	}
	path := string(b)
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || strings.IndexByte(part, 0) >= 0 {
			return "", fmt.Errorf("%q is no path below a directory", path)
		}
	}
	if again, err := Name(path); err != nil || again != name {
		return "", fmt.Errorf("the name of %q is another one", path)
	}
	return path, nil
}

// File is a file of a part.
type File struct {
	Name string // in the step's directory
	Size uint64 // bytes
}

// Digest returns the digest of a part of an adopted step. It covers the names and sizes of the
// files, and not their bytes: nobody reads these when a directory is adopted.
func Digest(files []File) [sha256.Size]byte {
	b := []byte("moraine adopted part 1\n")
	for _, f := range files {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(f.Name)))
		b = binary.LittleEndian.AppendUint64(append(b, f.Name...), f.Size)
	}
	return sha256.Sum256(b)
}
