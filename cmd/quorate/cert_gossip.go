package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

const (
	// gossipKeyName is the file that cert gossip makes.
	gossipKeyName = "gossip.key"
	// gossipKeyBytes makes AES-256.
	gossipKeyBytes = 32
)

func newCertGossip(o *options) *cobra.Command {
	dir := "."
	cmd := &cobra.Command{
		Use:   "gossip",
		Short: "Make the key by which the nodes' gossip is encrypted",
		Long: `gossip makes gossip.key: random bytes by which the nodes of a cluster encrypt what they tell each other of
themselves. It is the same on all nodes, which name it as gossip_key_file. No file is written over.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, err := makeGossipKey(dir)
			if err != nil {
				return err
			}
			v := struct {
				Key string `json:"key"`
			}{file}
			return o.output.print(cmd.OutOrStdout(), v, func(t table.Writer) {
				t.AppendHeader(table.Row{"key"})
				t.AppendRow(table.Row{v.Key})
			})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", dir, "where to put gossip.key")
	return cmd
}

// makeGossipKey writes a new key into dir and returns its file.
func makeGossipKey(dir string) (file string, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	file = filepath.Join(dir, gossipKeyName)
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("%s is there already: use another directory, or remove it first if no node uses it", file)
	}
	if err != nil {
		return "", err
	}
	key := make([]byte, gossipKeyBytes)
	_, _ = rand.Read(key) // it never fails
	_, err = fmt.Fprintln(f, base64.StdEncoding.EncodeToString(key))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file))
	}
	return file, nil
}
