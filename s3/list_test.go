package s3_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/testseed"
)

// listAll returns all keys and common prefixes, in the order of the pages.
func listAll(t *testing.T, c *minio.Core, bucket, prefix, delimiter string) []string {
	t.Helper()
	return listPages(t, c, bucket, listing{prefix: prefix, delimiter: delimiter, max: 1000, v2: true})
}

// listing is how a bucket is listed.
type listing struct {
	prefix, delimiter, after string
	max                      int
	v2                       bool
}

// listPages lists page by page, and checks each page's limit and order.
func listPages(t *testing.T, c *minio.Core, bucket string, l listing) []string {
	t.Helper()
	var all []string
	marker, token := l.after, ""
	for page := 0; ; page++ {
		var objects []minio.ObjectInfo
		var prefixes []minio.CommonPrefix
		var more bool
		if l.v2 {
			r, err := c.ListObjectsV2(bucket, l.prefix, l.after, token, l.delimiter, l.max)
			require.NoError(t, err)
			objects, prefixes, more, token = r.Contents, r.CommonPrefixes, r.IsTruncated, r.NextContinuationToken
		} else {
			r, err := c.ListObjects(bucket, l.prefix, marker, l.delimiter, l.max)
			require.NoError(t, err)
			objects, prefixes, more, marker = r.Contents, r.CommonPrefixes, r.IsTruncated, r.NextMarker
		}
		var got []string
		for _, o := range objects {
			got = append(got, o.Key)
		}
		require.True(t, slices.IsSorted(got), "%q", got)
		for _, p := range prefixes {
			got = append(got, p.Prefix)
		}
		slices.Sort(got)
		require.LessOrEqual(t, len(got), l.max)
		if len(all) > 0 && len(got) > 0 {
			require.Less(t, all[len(all)-1], got[0], "pages overlap")
		}
		all = append(all, got...)
		if !more {
			return all
		}
		require.NotEmpty(t, got, "a page that says there are more, and is empty")
		require.Less(t, page, 10_000)
	}
}

// modelList is the listing that S3 defines.
func modelList(keys []string, l listing) []string {
	var out []string
	for _, k := range keys {
		if !strings.HasPrefix(k, l.prefix) || k <= l.after {
			continue
		}
		if l.delimiter != "" {
			if i := strings.Index(k[len(l.prefix):], l.delimiter); i >= 0 {
				k = k[:len(l.prefix)+i+len(l.delimiter)]
				if k == l.after {
					continue
				}
			}
		}
		if len(out) == 0 || out[len(out)-1] != k {
			out = append(out, k)
		}
	}
	return out
}

// Listings are in the byte order of whole keys, for all names, and pages fit
// together, from wherever a listing begins. The test compares them with a model,
// over random keys whose names are prefixes of each other.
func TestListingOrder(t *testing.T) {
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 1))
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, fmt.Sprintf("listing-%d", s))
	alphabet := []string{"a", "b", "-", ".", "+", " ", "0", "é", "\U0001F600", "a-", "!"}
	name := func() string {
		n := ""
		for range 1 + rng.IntN(3) {
			n += alphabet[rng.IntN(len(alphabet))]
		}
		if n == "." || n == ".." {
			return "a."
		}
		return n
	}
	randomKey := func() string {
		k := name()
		for range rng.IntN(3) {
			k += "/" + name()
		}
		return k
	}
	set := map[string]bool{}
	isDir := func(k string) bool {
		for other := range set {
			if strings.HasPrefix(other, k+"/") {
				return true
			}
		}
		return false
	}
	for range 80 {
		k := randomKey()
		if rng.IntN(10) == 0 {
			k += "/"
		}
		clash := isDir(strings.TrimSuffix(k, "/")) && !strings.HasSuffix(k, "/") || set[strings.TrimSuffix(k, "/")]
		for i, r := range k {
			if r == '/' && set[k[:i]] {
				clash = true
			}
		}
		if clash || strings.TrimSpace(k) == "" {
			continue // a path is either a file or a directory; and the client refuses blanks
		}
		put(t, c, b, k, nil, minio.PutObjectOptions{})
		set[k] = true
	}
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	require.Equal(t, keys, listAll(t, c, b, "", ""))
	for range testseed.Of(40, 1000) {
		l := listing{max: 1 + rng.IntN(20), v2: rng.IntN(2) == 0}
		if rng.IntN(2) == 0 {
			l.max = 1000
		}
		if k := keys[rng.IntN(len(keys))]; rng.IntN(2) == 0 {
			l.prefix = cut(k, rng)
		}
		l.delimiter = []string{"", "/", "/", "-", "a"}[rng.IntN(5)]
		switch k := keys[rng.IntN(len(keys))]; rng.IntN(4) {
		case 0:
			l.after = k
		case 1:
			l.after = cut(k, rng)
		case 2:
			l.after = randomKey()
		}
		require.Equal(t, fmt.Sprintf("%q", modelList(keys, l)), fmt.Sprintf("%q", listPages(t, c, b, l)), "%+v", l)
	}
}

// cut returns a prefix of k.
func cut(k string, rng *rand.Rand) string {
	r := []rune(k)
	return string(r[:rng.IntN(len(r)+1)])
}

// Listings also show what other interfaces made: files, and empty directories as
// common prefixes. A symbolic link to a directory is a common prefix if directories
// are folded, and is not entered otherwise.
func TestListingOfOtherDoors(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "doors")
	for _, dir := range []string{"/doors/empty", "/doors/step-1"} {
		_, err := shared.client.Mkdir(ctx, dir, 0)
		require.NoError(t, err)
	}
	f, err := shared.client.Create(ctx, "/doors/step-1/model", client.CreateOptions{})
	require.NoError(t, err)
	_, err = f.Write([]byte("weights"))
	require.NoError(t, err)
	_, err = f.Commit(ctx)
	require.NoError(t, err)
	for link, target := range map[string]string{"latest": "step-1", "file": "step-1/model", "broken": "nowhere", "loop": "loop"} {
		_, err = shared.client.Symlink(ctx, target, "/doors/"+link)
		require.NoError(t, err)
	}
	dir, err := shared.client.Stat(ctx, "/doors")
	require.NoError(t, err)
	for typ := client.TypeFifo; typ <= client.TypeBlockDevice; typ++ { // no objects
		_, err = shared.client.Inodes().Mknod(ctx, dir.Inode(), fmt.Sprint("special-", typ), typ, 0, client.NodeOptions{})
		require.NoError(t, err)
	}
	_, err = c.StatObject(ctx, b, fmt.Sprint("special-", client.TypeFifo), minio.StatObjectOptions{})
	require.Equal(t, "NoSuchKey", minio.ToErrorResponse(err).Code)
	require.Equal(t, []string{"file", "step-1/model"}, listAll(t, c, b, "", ""))
	require.Equal(t, []string{"empty/", "file", "latest/", "step-1/"}, listAll(t, c, b, "", "/"))
	require.Equal(t, []string{"latest/model"}, listAll(t, c, b, "latest/", ""))
	got, _ := get(t, c, b, "latest/model", minio.GetObjectOptions{})
	require.Equal(t, "weights", string(got))
}

// Listings omit the snapshots of directories, unless they ask for what is below them.
func TestListingOmitsSnapshots(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "kept")
	put(t, c, b, "dir/a", []byte("a"), minio.PutObjectOptions{})
	for _, dir := range []string{"/kept", "/kept/dir"} {
		job, err := shared.client.Jobs().Snapshot(ctx, dir, "one")
		require.NoError(t, err)
		job, err = shared.client.Jobs().Wait(ctx, job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, client.JobDone, job.State, job.Error)
	}
	require.Equal(t, []string{"dir/a"}, listAll(t, c, b, "", ""))
	require.Equal(t, []string{"dir/"}, listAll(t, c, b, "", "/"))
	require.Equal(t, []string{".snapshots/one/dir/a"}, listAll(t, c, b, ".snapshots/one/", ""))
	got, _ := get(t, c, b, "dir/.snapshots/one/a", minio.GetObjectOptions{})
	require.Equal(t, "a", string(got))
}

// An object that is removed or replaced below a policy with a trash goes there. Listings omit it, and
// show an object whose own name is that of the trash.
func TestARemovedObjectIsInTheTrash(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "trashed")
	attr, err := shared.client.Stat(ctx, "/trashed")
	require.NoError(t, err)
	require.NoError(t, shared.owner.Policies().Set(ctx, attr.Inode(), client.Policy{Trash: time.Hour}))
	put(t, c, b, "dir/a", []byte("first"), minio.PutObjectOptions{})
	put(t, c, b, "dir/a", []byte("second"), minio.PutObjectOptions{})
	put(t, c, b, "dir/.trash", []byte("a file"), minio.PutObjectOptions{})
	require.NoError(t, c.RemoveObject(ctx, b, "dir/a", minio.RemoveObjectOptions{}))
	require.Equal(t, []string{"dir/.trash"}, listAll(t, c, b, "", ""))
	var kept []string
	for _, key := range listAll(t, c, b, ".trash/", "") {
		got, _ := get(t, c, b, key, minio.GetObjectOptions{})
		kept = append(kept, string(got))
	}
	require.ElementsMatch(t, []string{"first", "second"}, kept)
}

// Names that are not UTF-8 are no keys. Listings leave them out, in any pages and encoding, and lose
// no other key.
func TestNamesThatAreNotUTF8(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "not-utf8")
	want := []string{"a", "b/c", "\u00e9", "\uFFFD"}
	for _, key := range want {
		put(t, c, b, key, []byte("x"), minio.PutObjectOptions{})
	}
	_, err := shared.client.Mkdir(ctx, "/not-utf8/\xffdir", 0o755)
	require.NoError(t, err)
	for _, name := range []string{"a\xff", "\xff", "b/\xfe", "\xffdir/file", "caf\xe9"} {
		f, err := shared.client.Create(ctx, "/not-utf8/"+name, client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Commit(ctx)
		require.NoError(t, err)
	}
	for _, max := range []int{1, 2, 1000} {
		for _, v2 := range []bool{false, true} {
			require.Equal(t, want, listPages(t, c, b, listing{max: max, v2: v2}))
			require.Equal(t, []string{"a", "b/", "\u00e9", "\uFFFD"}, listPages(t, c, b, listing{max: max, delimiter: "/", v2: v2}))
		}
	}
	u, err := c.Presign(ctx, http.MethodPut, b, "\xfe", time.Minute, nil)
	require.NoError(t, err)
	status := rawPut(t, u, b, "\xfe")
	require.GreaterOrEqual(t, status, 400)
	require.Less(t, status, 500)
	_, err = shared.client.Stat(ctx, "/not-utf8/\xfe")
	require.ErrorIs(t, err, moraine.NotFound)
	require.Equal(t, "BucketNotEmpty", code(func() error {
		for _, key := range want {
			require.NoError(t, c.RemoveObject(ctx, b, key, minio.RemoveObjectOptions{}))
		}
		return c.RemoveBucket(ctx, b)
	}()))
}
