package devcluster

import (
	"os"
	"path/filepath"

	"github.com/morainefs/moraine/tiers/object"
)

// ObjectServerName is the node of the local bucket, and LocalBucket its name.
const (
	ObjectServerName = "o1"
	LocalBucket      = "moraine"
)

// NewObjectServer describes a process that serves a local bucket at address from
// dir, with its keys in dir (KeysFile). It is not started.
func NewObjectServer(binary, dir, address, log string) *Node {
	return &Node{Name: ObjectServerName, Role: ObjectServer, Address: address, Admin: address, Dir: dir, binary: binary, log: log,
		args: []string{string(ObjectServer), "--data", dir, "--listen", address, "--bucket", LocalBucket}}
}

// KeysFile is the keys file of an object server.
func (n *Node) KeysFile() string { return filepath.Join(n.Dir, "keys") }

// BucketArgs are the arguments with which a chunkserver uses an object server.
func (n *Node) BucketArgs() []string {
	return []string{"--bucket", "s3://" + LocalBucket, "--bucket-endpoint", "http://" + n.Address}
}

// BucketEnv is the environment with an object server's keys, which are made if they
// are missing.
func (n *Node) BucketEnv() ([]string, error) {
	keys, err := object.LoadKeys(n.KeysFile())
	return []string{"AWS_ACCESS_KEY_ID=" + keys.Access, "AWS_SECRET_ACCESS_KEY=" + keys.Secret, "AWS_SESSION_TOKEN="}, err
}

// prepareObjectServer adds the local bucket, if configured, and returns the
// arguments of chunkservers that use it.
func (c *Cluster) prepareObjectServer() ([]string, error) {
	if !c.cfg.ObjectServer {
		return nil, nil
	}
	addrs, err := c.writtenAddresses("object-address", 1)
	if err != nil {
		return nil, err
	}
	onNet := c.net != nil && c.net.Has(ObjectServerName)
	if onNet {
		addrs[0] = c.net.IP(ObjectServerName) + ":9000"
	}
	dir := filepath.Join(c.cfg.Dir, ObjectServerName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	listen := addrs[0]
	if c.cfg.Listen != nil {
		listen = c.cfg.Listen(ObjectServerName, addrs[0])
	}
	n := NewObjectServer(c.cfg.Binary, dir, listen, filepath.Join(c.cfg.Dir, "log", ObjectServerName+".log"))
	n.Address, n.Admin = addrs[0], addrs[0]
	if onNet {
		n.net = c.net
	}
	env, err := n.BucketEnv()
	if err != nil {
		return nil, err
	}
	c.nodes = append(c.nodes, n)
	c.cfg.Env = append(c.cfg.Env[:len(c.cfg.Env):len(c.cfg.Env)], env...)
	return n.BucketArgs(), nil
}
