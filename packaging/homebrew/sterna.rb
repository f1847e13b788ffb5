# Homebrew's formula, for a tap. packaging/update.py writes version and digest, `brew update-python-resources sterna` the
# packages that it needs.
class Sterna < Formula
  include Language::Python::Virtualenv

  desc "Low-bit language models on CPUs, with the same bits on every machine"
  homepage "https://pypi.org/project/sterna/"
  url "https://pypi.org/packages/source/s/sterna/sterna-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "Apache-2.0"

  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on "rust" => :build # tokenizers
  depends_on macos: :ventura
  depends_on "numpy"
  depends_on "python@3.13"

  def install
    virtualenv_install_with_resources
  end

  test do
    written = shell_output("#{bin}/sterna generate 'def read_lines(path):' --seed 1 --max-tokens 56")
    assert_match "class Codec(codecs.Codec):", written
  end
end
