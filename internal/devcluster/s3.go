package devcluster

import (
	"os"
	"path/filepath"
	"strings"
)

// S3Name is the node of the S3 endpoint, and of its certificate.
const S3Name = "s1"

// S3Config describes a process that is the S3 endpoint of a cluster.
type S3Config struct {
	Binary string
	// Dir holds the root key; it is made if missing. Log receives the process's
	// output.
	Dir, Log string
	// Listen and Admin are its addresses; Endpoint is the cluster's.
	Listen, Admin, Endpoint string
	// Certs holds the certificate of S3Name, Mode is the cluster's.
	Certs, Mode string
	// CertFile and KeyFile are the certificate for TLS, if it uses TLS.
	CertFile, KeyFile string
	// Root is the directory whose subdirectories are the buckets; empty: the root.
	Root string
	// Identity is the certificate to use; empty: that of S3Name.
	Identity string
	ReadOnly bool
}

// Protocol is the protocol of the endpoint, http or https.
func (c S3Config) Protocol() string {
	if c.CertFile != "" {
		return "https"
	}
	return "http"
}

// NewS3 describes an S3 endpoint. It is not started. It makes its root key if there
// is none (CredentialsFile).
func NewS3(cfg S3Config) (*Node, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	n := &Node{Name: S3Name, Role: S3, Address: cfg.Listen, Admin: cfg.Admin, Dir: cfg.Dir, binary: cfg.Binary, log: cfg.Log}
	if cfg.Identity == "" {
		cfg.Identity = S3Name
	}
	n.args = []string{string(S3), "moraine:///" + strings.TrimPrefix(cfg.Root, "/"), "--listen", cfg.Listen, "--admin-listen", cfg.Admin, "--endpoint", cfg.Endpoint,
		"--certs", cfg.Certs, "--identity", cfg.Identity, "--mode", cfg.Mode, "--credentials", n.CredentialsFile(), "--make-credentials"}
	if cfg.CertFile != "" {
		n.args = append(n.args, "--cert", cfg.CertFile, "--key", cfg.KeyFile)
	}
	if cfg.ReadOnly {
		n.args = append(n.args, "--read-only")
	}
	return n, nil
}

// CredentialsFile is the file with an S3 endpoint's root key, in the format of AWS
// clients.
func (n *Node) CredentialsFile() string { return filepath.Join(n.Dir, "credentials") }

// prepareS3 adds the S3 endpoint, if configured.
func (c *Cluster) prepareS3() error {
	if !c.cfg.S3 {
		return nil
	}
	addrs, err := c.writtenAddresses("s3-addresses", 2)
	if err != nil {
		return err
	}
	if c.cfg.S3Listen != "" {
		addrs[0] = c.cfg.S3Listen
	}
	listen := addrs[0]
	if c.cfg.Listen != nil {
		listen = c.cfg.Listen(S3Name, addrs[0])
	}
	n, err := NewS3(S3Config{Binary: c.cfg.Binary, Dir: filepath.Join(c.cfg.Dir, S3Name), Log: filepath.Join(c.cfg.Dir, "log", S3Name+".log"),
		Listen: listen, Admin: addrs[1], Endpoint: c.Endpoint(), Certs: c.Certs(), Mode: c.cfg.Mode})
	if err != nil {
		return err
	}
	n.Address = addrs[0]
	c.nodes = append(c.nodes, n)
	return nil
}
